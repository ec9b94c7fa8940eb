// Where a tensor becomes a view: the one place that looks at its device, dtype and strides.
//
// Errors: Unavailable: a device this build does not run on. InvalidArgument: dtype or strides, or
//         another device than that of the stream.
#pragma once

#include <span>

#include "kernels/base/check.h"
#include "kernels/base/stream_ref.h"
#include "kernels/base/view.h"
#include "python/bindings/tensor.h"
#include "runtime/device/device_memory.h"

namespace sluiceway {

inline DType dtype_of_tensor(const Tensor& tensor, const char* what) {
  switch (tensor.type()) {
    case ElementType::kFloat32:
      return DType::kF32;
    case ElementType::kFloat16:
      return DType::kF16;
    case ElementType::kBFloat16:
      return DType::kBF16;
    default:
      throw InvalidArgument(
          concat(what, ": is ", tensor.type_name(), ", expected float32, float16 or bfloat16"));
  }
}

inline void check_host(const Tensor& tensor, const char* what) {
  if (!tensor.on_host()) {
    throw Unavailable(concat(what, ": is on ", tensor.device_name(),
                             ", expected the CPU: it is read by the host; call .cpu()"));
  }
}

// Where a tensor lives, of the devices that this build runs on.
inline DeviceId device_of(const Tensor& tensor, const char* what) {
  if (tensor.on_host()) return DeviceId::host();
  const int ordinal = tensor.cuda_ordinal();
  if (ordinal >= 0 && ordinal < device_count()) return DeviceId::cuda(ordinal);
  throw Unavailable(concat(what, ": is on ", tensor.device_name(), ", this build and machine have ",
                           device_count(),
                           " CUDA devices and the host; move the model to the CPU"));
}

// A kernel on `stream` reads or writes the tensor.
inline void check_on(const StreamRef& stream, const Tensor& tensor, const char* what) {
  const DeviceId device = device_of(tensor, what);
  SLUICEWAY_CHECK(device == stream.device(), what, ": is on ", to_string(device), ", expected ",
                  to_string(stream.device()), ", where the optimizer was made");
}

// Rows must be contiguous; columns of a row are neighbours.
inline AnyMatrix matrix_view(const Tensor& tensor, const char* what) {
  device_of(tensor, what);
  SLUICEWAY_CHECK(tensor.has_elements() && tensor.dim() == 2, what, ": has ", tensor.dim(),
                  " dimensions or is sparse, expected a dense matrix");
  SLUICEWAY_CHECK(tensor.size(1) <= 1 || tensor.stride(1) == 1, what, ": neighbours in a row are ",
                  tensor.stride(1), " elements apart, expected 1; call .contiguous()");
  return {tensor.data(), tensor.size(0), tensor.size(1), tensor.stride(0),
          dtype_of_tensor(tensor, what)};
}

// All elements of a contiguous f32 tensor.
inline std::span<float> f32_span(const Tensor& tensor, const char* what) {
  device_of(tensor, what);
  SLUICEWAY_CHECK(tensor.has_elements(), what, ", a ", kNoElements);
  SLUICEWAY_CHECK(tensor.type() == ElementType::kFloat32 && tensor.is_contiguous(), what, ": is ",
                  tensor.type_name(), ", expected contiguous float32");
  return {static_cast<float*>(tensor.data()), static_cast<std::size_t>(tensor.numel())};
}

}  // namespace sluiceway
