#include <cstddef>

#include "kernels/base/checksum.h"
#include "python/bindings/bindings.h"

namespace sluiceway {
namespace {

void update(Checksum& checksum, const py::buffer& bytes) {
  Py_buffer view;  // Contiguous bytes, or BufferError.
  if (PyObject_GetBuffer(bytes.ptr(), &view, PyBUF_SIMPLE) != 0) throw py::error_already_set();
  {
    const py::gil_scoped_release release;
    checksum.update({static_cast<const std::byte*>(view.buf), static_cast<std::size_t>(view.len)});
  }
  PyBuffer_Release(&view);
}

}  // namespace

void bind_checksum(py::module_& m) {
  py::class_<Checksum>(m, "Checksum", "XXH3 of 128 bits over bytes that come piece by piece.")
      .def(py::init<>())
      .def("update", &update, py::arg("bytes"), "Take the next piece, without holding the GIL.")
      .def("hex", &Checksum::hex, "32 hex digits, as `xxh128sum` prints them.");
}

}  // namespace sluiceway
