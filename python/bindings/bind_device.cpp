#include <cstddef>
#include <cstdint>

#include "kernels/base/stream_ref.h"
#include "python/bindings/bindings.h"
#include "python/bindings/gil.h"
#include "runtime/device/device_memory.h"

namespace sluiceway {

void bind_device(py::module_& m) {
  m.def("cuda_device_count", &device_count,
        "CUDA devices that this build can use; 0 in a build without CUDA.");
  m.def(
      "page_lock_refusal",
      [](int ordinal, std::size_t bytes) {
        return page_lock_refusal(DeviceId::cuda(ordinal), bytes);
      },
      py::arg("ordinal"), py::arg("bytes"), py::call_guard<GilReleased>(),
      "What keeps so many bytes of host memory from being page-locked for a CUDA device; empty: "
      "nothing does.");
  py::class_<StreamRef>(m, "Stream", "The stream of a device that the framework computes on.")
      .def_static("host", &StreamRef::host, "The calling thread.")
      .def_static(
          "cuda",
          [](int ordinal, std::uintptr_t native) {
            return StreamRef::cuda(ordinal, reinterpret_cast<void*>(native));
          },
          py::arg("ordinal"), py::arg("native"), "native: the cudaStream_t as a number.")
      .def(
          "__eq__", [](const StreamRef& stream, const StreamRef& other) { return stream == other; },
          py::arg("other"), py::is_operator());
}

}  // namespace sluiceway
