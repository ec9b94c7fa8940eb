// Is every element finite, what is their sum of squares, what is the largest: in one read.
//
//   name    shape   dtype               access
//   x, src  n       f32 | f16 | bf16    read
//   dst     n       f32 | f16 | bf16    write, by overflow_scan_copy: src rounded to nearest even
//
// The result describes what was read, not what was written: a gradient that overflows only in its
// 16-bit copy still counts as finite, and abs_max tells.
//
// Numerics: finite and abs_max are exact. sum_squares: relative error below 5e-7 (1e-8 on random
//           numbers) for any length and magnitudes, subnormals included: chains of 8 squares are
//           summed in f32, rescaled where they would leave its range, and the rest in double.
//           Equal calls give equal bits on one machine; instruction sets differ in the last digits.
// Aliasing: dst does not overlap src.
// Errors:   InvalidArgument if dst and src differ in length; nothing was written.
// Cost:     reads n sizeof(T) bytes once; the copy also writes n sizeof(Dst). No temporary.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <span>

#include "kernels/base/dtype.h"
#include "kernels/base/stream_ref.h"
#include "kernels/base/view.h"

namespace sluiceway {

struct ScanResult {
  bool finite = true;
  double sum_squares = 0.0;  // Infinite or NaN when not finite.
  float abs_max = 0.0F;      // Infinite or NaN when not finite.
};

// The result for both parts together; the empty part is ScanResult{}.
inline ScanResult merge(const ScanResult& a, const ScanResult& b) {
  const bool nan = std::isnan(a.abs_max) || std::isnan(b.abs_max);
  return {a.finite && b.finite, a.sum_squares + b.sum_squares,
          nan ? a.abs_max + b.abs_max : std::max(a.abs_max, b.abs_max)};
}

}  // namespace sluiceway

namespace sluiceway::cpu {

template <typename T>
ScanResult overflow_scan(std::span<const T> x);

template <typename Dst>
ScanResult overflow_scan_copy(std::span<const float> src, std::span<Dst> dst);

ScanResult overflow_scan(const AnyMatrix& x);  // Row after row where rows are not contiguous.

}  // namespace sluiceway::cpu

namespace sluiceway::cuda {

// Enqueues on `stream`; all pointers are device memory and stay valid until then, `result` too.
// Throws Unavailable where this build has no such half.
template <typename T>
void overflow_scan(std::span<const T> x, ScanResult* result, StreamRef stream);

template <typename Dst>
void overflow_scan_copy(std::span<const float> src, std::span<Dst> dst, ScanResult* result,
                        StreamRef stream);

void overflow_scan(const AnyMatrix& x, ScanResult* result, StreamRef stream);

}  // namespace sluiceway::cuda

namespace sluiceway {

// On the device of `stream`, whose memory `result` is in: the only place that chooses a half.
template <typename T>
void overflow_scan(std::span<const T> x, ScanResult* result, StreamRef stream) {
  if (!stream.is_host()) return cuda::overflow_scan(x, result, stream);
  *result = cpu::overflow_scan(x);
}

template <typename Dst>
void overflow_scan_copy(std::span<const float> src, std::span<Dst> dst, ScanResult* result,
                        StreamRef stream) {
  if (!stream.is_host()) return cuda::overflow_scan_copy(src, dst, result, stream);
  *result = cpu::overflow_scan_copy(src, dst);
}

inline void overflow_scan(const AnyMatrix& x, ScanResult* result, StreamRef stream) {
  if (!stream.is_host()) return cuda::overflow_scan(x, result, stream);
  *result = cpu::overflow_scan(x);
}

}  // namespace sluiceway
