// Where a tensor becomes a view: the one place that looks at its device, dtype and strides.
//
// Errors: Unavailable: a device this build does not run on. InvalidArgument: dtype or strides, or
//         another device than that of the stream.
#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/ops/from_blob.h>
#include <torch/csrc/utils/pybind.h>

#include <span>

#include "kernels/base/check.h"
#include "kernels/base/stream_ref.h"
#include "kernels/base/view.h"
#include "runtime/device/device_memory.h"

namespace sluiceway {

inline DType dtype_of_tensor(const at::Tensor& tensor, const char* what) {
  switch (tensor.scalar_type()) {
    case at::kFloat:
      return DType::kF32;
    case at::kHalf:
      return DType::kF16;
    case at::kBFloat16:
      return DType::kBF16;
    default:
      throw InvalidArgument(
          concat(what, ": is ", tensor.scalar_type(), ", expected float32, float16 or bfloat16"));
  }
}

inline at::ScalarType type_of_dtype(DType dtype) noexcept {
  switch (dtype) {
    case DType::kF32:
      return at::kFloat;
    case DType::kF16:
      return at::kHalf;
    case DType::kBF16:
      return at::kBFloat16;
  }
  return at::kFloat;
}

// A tensor over memory that its caller keeps.
inline at::Tensor tensor_over(void* data, at::IntArrayRef sizes, at::ScalarType type,
                              DeviceId device) {
  const at::Device where =
      device.is_host() ? at::Device(at::kCPU)
                       : at::Device(at::kCUDA, static_cast<at::DeviceIndex>(device.ordinal()));
  return at::from_blob(data, sizes, at::TensorOptions().dtype(type).device(where));
}

inline void check_host(const at::Tensor& tensor, const char* what) {
  if (!tensor.device().is_cpu()) {
    throw Unavailable(concat(what, ": is on ", tensor.device().str(),
                             ", expected the CPU: it is read by the host; call .cpu()"));
  }
}

// Where a tensor lives, of the devices that this build runs on.
inline DeviceId device_of(const at::Tensor& tensor, const char* what) {
  const at::Device device = tensor.device();
  if (device.is_cpu()) return DeviceId::host();
  if (device.is_cuda() && device.index() < device_count()) return DeviceId::cuda(device.index());
  throw Unavailable(concat(what, ": is on ", device.str(), ", this build and machine have ",
                           device_count(),
                           " CUDA devices and the host; move the model to the CPU"));
}

// A kernel on `stream` reads or writes the tensor.
inline void check_on(const StreamRef& stream, const at::Tensor& tensor, const char* what) {
  const DeviceId device = device_of(tensor, what);
  SLUICEWAY_CHECK(device == stream.device(), what, ": is on ", to_string(device), ", expected ",
                  to_string(stream.device()), ", where the optimizer was made");
}

// Rows must be contiguous; columns of a row are neighbours.
inline AnyMatrix matrix_view(const at::Tensor& tensor, const char* what) {
  device_of(tensor, what);
  SLUICEWAY_CHECK(tensor.layout() == at::kStrided && tensor.dim() == 2, what, ": has ",
                  tensor.dim(), " dimensions or is sparse, expected a dense matrix");
  SLUICEWAY_CHECK(tensor.size(1) <= 1 || tensor.stride(1) == 1, what, ": neighbours in a row are ",
                  tensor.stride(1), " elements apart, expected 1; call .contiguous()");
  return {tensor.data_ptr(), tensor.size(0), tensor.size(1), tensor.stride(0),
          dtype_of_tensor(tensor, what)};
}

// All elements of a contiguous f32 tensor.
inline std::span<float> f32_span(const at::Tensor& tensor, const char* what) {
  device_of(tensor, what);
  SLUICEWAY_CHECK(tensor.scalar_type() == at::kFloat && tensor.is_contiguous(), what, ": is ",
                  tensor.scalar_type(), ", expected contiguous float32");
  return {tensor.mutable_data_ptr<float>(), static_cast<std::size_t>(tensor.numel())};
}

}  // namespace sluiceway
