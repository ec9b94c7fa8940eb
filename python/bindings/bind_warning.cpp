// Warnings of the runtime as Python's: any thread may warn, Python's main thread hears of it.
//
// A lane that warns may not take the GIL: who waits for the lane may hold it. So a text is queued,
// and the interpreter asked to call deliver() on its main thread, between two instructions, as it
// does for signals: after the next call that has let the GIL go, at the latest. Where warnings are
// errors, that is where they are raised.
//
// Until the interpreter begins to end; what is left is said then, and what comes later goes to
// stderr, as without Python.
#include <deque>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <utility>

#include "python/bindings/bindings.h"
#include "runtime/trace/warning.h"

namespace sluiceway {
namespace {

struct Queue {
  std::mutex mutex;
  std::deque<std::string> texts;
  bool open = true;
};

Queue& queue() {
  static Queue* const one = new Queue;  // Outlives every thread.
  return *one;
}

std::optional<std::string> take() {
  const std::lock_guard lock(queue().mutex);
  if (queue().texts.empty()) return std::nullopt;
  std::string text = std::move(queue().texts.front());
  queue().texts.pop_front();
  return text;
}

// On the main thread, with the GIL. -1: a warning is an error, which is set; the rest waits for the
// next call.
int deliver(void* /*unused*/) {
  while (const std::optional<std::string> text = take()) {
    if (PyErr_WarnEx(PyExc_RuntimeWarning, text->c_str(), 1) != 0) return -1;
  }
  return 0;
}

void add(const std::string& text) {
  std::unique_lock lock(queue().mutex);
  if (!queue().open) {  // There is no handler any more.
    lock.unlock();
    return warn(text);
  }
  queue().texts.push_back(text);
  // Under the lock, so that close() is not done in between. A full list of the interpreter's is no
  // loss: a text in the queue comes with the next one, or at the end.
  Py_AddPendingCall(&deliver, nullptr);
}

// The caller waits and keeps the GIL, as one may that waits for a lane.
void warn_as_a_lane(const std::string& text) {
  std::thread lane([&] { warn(text); });
  lane.join();
}

void close() {
  set_warning_handler({});
  {
    const std::lock_guard lock(queue().mutex);
    queue().open = false;
  }
  while (deliver(nullptr) != 0) PyErr_WriteUnraisable(nullptr);
}

}  // namespace

void bind_warning(py::module_& m) {
  set_warning_handler(&add);
  py::module_::import("atexit").attr("register")(py::cpp_function(&close));
  m.def("warn", &warn_as_a_lane, py::arg("text"),
        "Say a sentence as a lane of the runtime does: a RuntimeWarning on the main thread.");
}

}  // namespace sluiceway
