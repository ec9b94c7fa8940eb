#include "python/bindings/gil.h"

#include <atomic>
#include <memory>

namespace sluiceway {
namespace {

// A stack without a lock, since a process may fork while another thread is in here.
class Released {
 public:
  void add(PyObject* object) {
    auto* const top = new Entry{object, nullptr};
    Entry* below = head_.load();
    do {
      top->below = below;
    } while (!head_.compare_exchange_weak(below, top));
    // A full queue of calls takes none; then the next end() ends it.
    if (!is_due_.exchange(true) && Py_AddPendingCall(&Released::end_pending, nullptr) != 0) {
      is_due_ = false;
    }
  }

  void end() {
    if (head_.load() == nullptr) return;
    is_due_ = false;
    for (Entry* entry = head_.exchange(nullptr); entry != nullptr;) {
      const std::unique_ptr<Entry> ended(entry);
      entry = ended->below;
      Py_DECREF(ended->object);
    }
  }

  static Released& all() {
    static Released one;
    return one;
  }

 private:
  struct Entry {
    PyObject* object;
    Entry* below;
  };

  static int end_pending(void*) {
    all().end();
    return 0;
  }

  std::atomic<Entry*> head_ = nullptr;
  std::atomic<bool> is_due_ = false;  // The main thread has been asked.
};

void let_go(PyObject* object) {
  if (Py_IsInitialized() == 0) return;
  if (PyGILState_Check() != 0) {
    Py_DECREF(object);
  } else {
    Released::all().add(object);
  }
}

}  // namespace

Kept kept(py::handle object) { return {object.inc_ref().ptr(), &let_go}; }

void end_released() { Released::all().end(); }

}  // namespace sluiceway
