// The GIL let go, or taken, for a while, in a way that survives the end of the interpreter.
//
// A daemon thread may come back from C++ when the interpreter has begun to end. CPython before 3.14
// ends such a thread by pthread_exit() inside of PyEval_RestoreThread(), which unwinds the stack:
// through destructors, which are noexcept, so std::terminate() would end the process, and through
// those that need the GIL, which nobody will give. So the thread stays where it is instead, as
// CPython 3.14 has it, until the process has ended.
#pragma once

#include <unistd.h>

#include <memory>

#include "python/bindings/bindings.h"

namespace sluiceway {

// A Python object that is kept alive. Any thread may copy it and let go of it, without the GIL,
// too: the object then ends as soon as the main thread runs Python code again.
using Kept = std::shared_ptr<PyObject>;
Kept kept(py::handle object);
void end_released();  // Ends what other threads have let go of.

// Calls `take`, which takes the GIL.
template <typename Take>
auto take_gil(Take take) {
  try {
    return take();
  } catch (...) {  // The unwinding: it goes on where a handler ends, and this one does not.
    for (;;) pause();
  }
}

class GilReleased {
 public:
  GilReleased() : state_(PyEval_SaveThread()) {}
  ~GilReleased() {
    take_gil([this] { PyEval_RestoreThread(state_); });
    end_released();  // Lanes have let go of gradients meanwhile.
  }
  GilReleased(const GilReleased&) = delete;
  GilReleased& operator=(const GilReleased&) = delete;

 private:
  PyThreadState* state_;
};

class GilHeld {
 public:
  GilHeld() : state_(take_gil([] { return PyGILState_Ensure(); })) {}
  ~GilHeld() { PyGILState_Release(state_); }
  GilHeld(const GilHeld&) = delete;
  GilHeld& operator=(const GilHeld&) = delete;

 private:
  PyGILState_STATE state_;
};

}  // namespace sluiceway
