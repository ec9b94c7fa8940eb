#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/gradient_copy_cpu.cpp"
#include <hwy/foreach_target.h>
// foreach_target.h comes first: it includes this file once for each instruction set.
#include <hwy/highway.h>

#include "kernels/array_checks.h"
#include "kernels/base/elements.h"
#include "kernels/gradient_copy-inl.h"
#include "kernels/gradient_copy.h"

HWY_BEFORE_NAMESPACE();
namespace sluiceway {
namespace HWY_NAMESPACE {

ScanResult keep_f32(const float* x, float* y, std::size_t n) { return copy_and_scan(x, y, n); }
ScanResult keep_f16(const f16* x, f16* y, std::size_t n) { return copy_and_scan(x, y, n); }
ScanResult keep_bf16(const bf16* x, bf16* y, std::size_t n) { return copy_and_scan(x, y, n); }
ScanResult round_f16(const float* x, f16* y, std::size_t n) { return copy_and_scan(x, y, n); }
ScanResult round_bf16(const float* x, bf16* y, std::size_t n) { return copy_and_scan(x, y, n); }

}  // namespace HWY_NAMESPACE
}  // namespace sluiceway
HWY_AFTER_NAMESPACE();

#if HWY_ONCE

namespace sluiceway {

HWY_EXPORT(keep_f32);
HWY_EXPORT(keep_f16);
HWY_EXPORT(keep_bf16);
HWY_EXPORT(round_f16);
HWY_EXPORT(round_bf16);

namespace cpu {

template <>
ScanResult gradient_copy(std::span<const float> src, std::span<float> dst) {
  check_copy_lengths("gradient_copy", src.size(), dst.size());
  return HWY_DYNAMIC_DISPATCH(keep_f32)(src.data(), dst.data(), src.size());
}
template <>
ScanResult gradient_copy(std::span<const f16> src, std::span<f16> dst) {
  check_copy_lengths("gradient_copy", src.size(), dst.size());
  return HWY_DYNAMIC_DISPATCH(keep_f16)(src.data(), dst.data(), src.size());
}
template <>
ScanResult gradient_copy(std::span<const bf16> src, std::span<bf16> dst) {
  check_copy_lengths("gradient_copy", src.size(), dst.size());
  return HWY_DYNAMIC_DISPATCH(keep_bf16)(src.data(), dst.data(), src.size());
}
template <>
ScanResult gradient_copy(std::span<const float> src, std::span<f16> dst) {
  check_copy_lengths("gradient_copy", src.size(), dst.size());
  return HWY_DYNAMIC_DISPATCH(round_f16)(src.data(), dst.data(), src.size());
}
template <>
ScanResult gradient_copy(std::span<const float> src, std::span<bf16> dst) {
  check_copy_lengths("gradient_copy", src.size(), dst.size());
  return HWY_DYNAMIC_DISPATCH(round_bf16)(src.data(), dst.data(), src.size());
}

ScanResult gradient_copy(std::span<const std::byte> src, DType src_dtype, std::span<std::byte> dst,
                         DType dst_dtype) {
  check_copy_types(src.size(), src_dtype, dst.size(), dst_dtype);
  switch (src_dtype) {
    case DType::kF16:
      return gradient_copy(elements<f16>(src), elements<f16>(dst));
    case DType::kBF16:
      return gradient_copy(elements<bf16>(src), elements<bf16>(dst));
    case DType::kF32:
      break;
  }
  switch (dst_dtype) {
    case DType::kF16:
      return gradient_copy(elements<float>(src), elements<f16>(dst));
    case DType::kBF16:
      return gradient_copy(elements<float>(src), elements<bf16>(dst));
    case DType::kF32:
      break;
  }
  return gradient_copy(elements<float>(src), elements<float>(dst));
}

}  // namespace cpu
}  // namespace sluiceway

#endif  // HWY_ONCE
