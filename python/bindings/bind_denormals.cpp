#include "python/bindings/bindings.h"
#include "runtime/device/denormals.h"

namespace sluiceway {

void bind_denormals(py::module_& m) {
  m.def("flush_denormals", &flush_denormals, py::arg("on"),
        "Let this thread and torch's own take numbers below 2^-126 for 0, or not; returns whether "
        "this thread did. Threads that are made later start with it.");
}

}  // namespace sluiceway
