// Lets Ctrl-C end a wait of C++: Python's handlers run, and what they raise is thrown.
#pragma once

#include <functional>

#include "python/bindings/bindings.h"
#include "python/bindings/gil.h"

namespace sluiceway {

// To be called without the GIL. Python hears signals on its main thread alone: elsewhere nothing
// happens.
inline std::function<void()> signal_check() {
  const py::object main = py::module_::import("threading").attr("main_thread")();
  return [main_thread = main.attr("ident").cast<unsigned long>()] {
    if (PyThread_get_thread_ident() != main_thread) return;
    const GilHeld locked;
    if (PyErr_CheckSignals() != 0) throw py::error_already_set();
  };
}

}  // namespace sluiceway
