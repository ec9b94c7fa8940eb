#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/overflow_scan_cpu.cpp"
#include <hwy/foreach_target.h>
// foreach_target.h comes first: it includes this file once for each instruction set.
#include <hwy/highway.h>

#include "kernels/array_checks.h"
#include "kernels/overflow_scan-inl.h"
#include "kernels/overflow_scan.h"

HWY_BEFORE_NAMESPACE();
namespace sluiceway {
namespace HWY_NAMESPACE {

template <typename T>
HWY_INLINE ScanResult scan(const T* x, std::size_t n) {
  RunningScan total;
  for (std::size_t i = 0; i < n; i += kScanBlock) {
    const std::size_t count = n - i < kScanBlock ? n - i : kScanBlock;
    total.add(x + i, count, NoSink());
  }
  return total.result();
}

template <typename Dst>
HWY_INLINE ScanResult scan_copy(const float* src, Dst* dst, std::size_t n) {
  const hn::ScalableTag<float> d;
  RunningScan total;
  for (std::size_t i = 0; i < n; i += kScanBlock) {
    const std::size_t count = n - i < kScanBlock ? n - i : kScanBlock;
    Dst* out = dst + i;
    const auto store = [&](std::size_t at, auto x, std::size_t lanes) HWY_ATTR {
      if (lanes == hn::Lanes(d)) {
        WholeVector().store(d, x, out + at);
      } else {
        FirstLanes{lanes}.store(d, x, out + at);
      }
    };
    total.add(src + i, count, store);
  }
  return total.result();
}

ScanResult scan_f32(const float* x, std::size_t n) { return scan(x, n); }
ScanResult scan_f16(const f16* x, std::size_t n) { return scan(x, n); }
ScanResult scan_bf16(const bf16* x, std::size_t n) { return scan(x, n); }
ScanResult copy_f32(const float* x, float* y, std::size_t n) { return scan_copy(x, y, n); }
ScanResult copy_f16(const float* x, f16* y, std::size_t n) { return scan_copy(x, y, n); }
ScanResult copy_bf16(const float* x, bf16* y, std::size_t n) { return scan_copy(x, y, n); }

}  // namespace HWY_NAMESPACE
}  // namespace sluiceway
HWY_AFTER_NAMESPACE();

#if HWY_ONCE

namespace sluiceway {
namespace {

HWY_EXPORT(scan_f32);
HWY_EXPORT(scan_f16);
HWY_EXPORT(scan_bf16);
HWY_EXPORT(copy_f32);
HWY_EXPORT(copy_f16);
HWY_EXPORT(copy_bf16);

}  // namespace

namespace cpu {

template <>
ScanResult overflow_scan(std::span<const float> x) {
  return HWY_DYNAMIC_DISPATCH(scan_f32)(x.data(), x.size());
}
template <>
ScanResult overflow_scan(std::span<const f16> x) {
  return HWY_DYNAMIC_DISPATCH(scan_f16)(x.data(), x.size());
}
template <>
ScanResult overflow_scan(std::span<const bf16> x) {
  return HWY_DYNAMIC_DISPATCH(scan_bf16)(x.data(), x.size());
}

template <>
ScanResult overflow_scan_copy(std::span<const float> src, std::span<float> dst) {
  check_copy_lengths("overflow_scan_copy", src.size(), dst.size());
  return HWY_DYNAMIC_DISPATCH(copy_f32)(src.data(), dst.data(), src.size());
}
template <>
ScanResult overflow_scan_copy(std::span<const float> src, std::span<f16> dst) {
  check_copy_lengths("overflow_scan_copy", src.size(), dst.size());
  return HWY_DYNAMIC_DISPATCH(copy_f16)(src.data(), dst.data(), src.size());
}
template <>
ScanResult overflow_scan_copy(std::span<const float> src, std::span<bf16> dst) {
  check_copy_lengths("overflow_scan_copy", src.size(), dst.size());
  return HWY_DYNAMIC_DISPATCH(copy_bf16)(src.data(), dst.data(), src.size());
}

namespace {

template <typename T>
ScanResult scan_rows(MatrixView<const T> x) {
  const auto row = static_cast<std::size_t>(x.cols);
  if (x.contiguous()) {
    return overflow_scan(std::span(x.data, static_cast<std::size_t>(x.rows) * row));
  }
  ScanResult all;
  for (std::int64_t i = 0; i < x.rows; ++i) {
    all = merge(all, overflow_scan(std::span(x.row(i), row)));
  }
  return all;
}

}  // namespace

ScanResult overflow_scan(const AnyMatrix& x) {
  switch (x.dtype) {
    case DType::kF16:
      return scan_rows(x.as<const f16>());
    case DType::kBF16:
      return scan_rows(x.as<const bf16>());
    case DType::kF32:
      break;
  }
  return scan_rows(x.as<const float>());
}

}  // namespace cpu
}  // namespace sluiceway

#endif  // HWY_ONCE
