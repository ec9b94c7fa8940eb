// Writes a gradient in the type it is kept in, and looks at what is written: in one pass.
//
//   dst <- src, rounded to nearest even
//
//   name    shape   dtype               access
//   src     n       f32 | f16 | bf16    read
//   dst     n       f32 | f16 | bf16    write; the type of src, or a 16-bit one where src is f32
//
// The result describes what was written: a gradient that becomes infinite only in its 16-bit copy
// is an overflow, and the squares are those of the rounded values.
//
// Numerics: finite and abs_max are exact, and sum_squares as near as overflow_scan() of dst would
//           be; equal calls give equal bits. Equal types copy every bit, those of a NaN too.
// Aliasing: dst does not overlap src.
// Errors:   InvalidArgument, naming both lengths or both types; nothing was written.
// Cost:     reads src once and writes dst once; the scan takes it from registers. No temporary.
#pragma once

#include <cstddef>
#include <span>

#include "kernels/base/dtype.h"
#include "kernels/base/stream_ref.h"
#include "kernels/overflow_scan.h"

namespace sluiceway::cpu {

template <typename Src, typename Dst>
ScanResult gradient_copy(std::span<const Src> src, std::span<Dst> dst);

// The same for types that are known at run time only.
ScanResult gradient_copy(std::span<const std::byte> src, DType src_dtype, std::span<std::byte> dst,
                         DType dst_dtype);

}  // namespace sluiceway::cpu

namespace sluiceway::cuda {

// Enqueues on `stream`; all pointers are device memory and stay valid until then, `result` too.
// Throws Unavailable where this build has no such half.
template <typename Src, typename Dst>
void gradient_copy(std::span<const Src> src, std::span<Dst> dst, ScanResult* result,
                   StreamRef stream);

void gradient_copy(std::span<const std::byte> src, DType src_dtype, std::span<std::byte> dst,
                   DType dst_dtype, ScanResult* result, StreamRef stream);

}  // namespace sluiceway::cuda

namespace sluiceway {

// On the device of `stream`, whose memory `result` is in: the only place that chooses a half.
template <typename Src, typename Dst>
void gradient_copy(std::span<const Src> src, std::span<Dst> dst, ScanResult* result,
                   StreamRef stream) {
  if (!stream.is_host()) return cuda::gradient_copy(src, dst, result, stream);
  *result = cpu::gradient_copy(src, dst);
}

inline void gradient_copy(std::span<const std::byte> src, DType src_dtype, std::span<std::byte> dst,
                          DType dst_dtype, ScanResult* result, StreamRef stream) {
  if (!stream.is_host()) {
    return cuda::gradient_copy(src, src_dtype, dst, dst_dtype, result, stream);
  }
  *result = cpu::gradient_copy(src, src_dtype, dst, dst_dtype);
}

}  // namespace sluiceway
