// Writes a gradient in the type in which it is kept and scans what it writes, in one pass.
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
// Numerics: finite and abs_max are exact, and sum_squares is as accurate as overflow_scan() of dst;
//           equal calls give equal bits. Equal types copy every bit, even of a NaN.
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

// The same for types that are known only at run time.
ScanResult gradient_copy(std::span<const std::byte> src, DType src_dtype, std::span<std::byte> dst,
                         DType dst_dtype);

}  // namespace sluiceway::cpu

namespace sluiceway::cuda {

// Enqueues on `stream`; all pointers, `result` included, are device memory and stay valid until the
// work has run. Throws Unavailable in a build without CUDA.
template <typename Src, typename Dst>
void gradient_copy(std::span<const Src> src, std::span<Dst> dst, ScanResult* result,
                   StreamRef stream);

void gradient_copy(std::span<const std::byte> src, DType src_dtype, std::span<std::byte> dst,
                   DType dst_dtype, ScanResult* result, StreamRef stream);

}  // namespace sluiceway::cuda

namespace sluiceway {

// Runs on the device of `stream`, which also holds `result`. Only this function chooses between CPU
// and CUDA.
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
