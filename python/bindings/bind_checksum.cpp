#include "kernels/base/checksum.h"
#include "python/bindings/buffer_bytes.h"
#include "python/bindings/gil.h"

namespace sluiceway {
namespace {

void update(Checksum& checksum, const py::buffer& bytes) {
  const BufferBytes held(bytes);
  const GilReleased unlocked;
  checksum.update(held.get());
}

}  // namespace

void bind_checksum(py::module_& m) {
  py::class_<Checksum>(m, "Checksum", "XXH3 of 128 bits over bytes that come piece by piece.")
      .def(py::init<>())
      .def("update", &update, py::arg("bytes"), "Take the next piece, without holding the GIL.")
      .def("hex", &Checksum::hex, "32 hex digits, as `xxh128sum` prints them.");
}

}  // namespace sluiceway
