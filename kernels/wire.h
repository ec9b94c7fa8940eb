// The format of a core on a link: packed on one side, unpacked on the other.
//
//   kF32    n x f32
//   kBF16   n x bf16, rounded to nearest even
//   kInt8   ceil(n / 64) x f32 scales, then n x i8: value = scale * code, code in [-127, 127],
//           scale = absmax / 127 over 64 values, code rounded to nearest even
//
//   name    shape                    dtype   access
//   values  n                        f32     read by pack, written by unpack
//   wire    wire_bytes(format, n)    bytes   written by pack, read by unpack; aligned to 4
//
// Numerics: kInt8: |error| <= scale / 2 for scales from 2^-126 on. A group that holds an infinity
// or
//           a NaN unpacks to NaN throughout; in kBF16 only that element does. Never a finite
//           number.
// Aliasing: values and wire do not overlap.
// Errors:   InvalidArgument, naming both sizes, or the alignment; nothing was written.
// Cost:     reads n * 4 bytes once and writes wire_bytes, with the scan in the same pass.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "kernels/base/stream_ref.h"
#include "kernels/overflow_scan.h"

namespace sluiceway {

enum class WireFormat : std::uint8_t { kF32, kBF16, kInt8 };

inline constexpr std::int64_t kWireGroup = 64;  // Values that share a scale in kInt8.

constexpr std::int64_t wire_groups(std::int64_t elems) noexcept {  // Scales of kInt8.
  return (elems + kWireGroup - 1) / kWireGroup;
}

constexpr std::uint64_t wire_bytes(WireFormat format, std::int64_t elems) noexcept {
  const auto n = static_cast<std::uint64_t>(elems);
  switch (format) {
    case WireFormat::kF32:
      return 4 * n;
    case WireFormat::kBF16:
      return 2 * n;
    case WireFormat::kInt8:
      return 4 * static_cast<std::uint64_t>(wire_groups(elems)) + n;
  }
  return 0;
}

}  // namespace sluiceway

namespace sluiceway::cpu {

// Returns a scan of `values`, as overflow_scan(values) would.
ScanResult pack(WireFormat format, std::span<const float> values, std::span<std::byte> wire);

void unpack(WireFormat format, std::span<const std::byte> wire, std::span<float> values);

}  // namespace sluiceway::cpu

namespace sluiceway::cuda {

// Enqueue on `stream`; all pointers, `result` included, are device memory and stay valid until the
// work has run. Throw Unavailable in a build without CUDA.
void pack(WireFormat format, std::span<const float> values, std::span<std::byte> wire,
          ScanResult* result, StreamRef stream);

void unpack(WireFormat format, std::span<const std::byte> wire, std::span<float> values,
            StreamRef stream);

}  // namespace sluiceway::cuda

namespace sluiceway {

// Runs on the device of `stream`, which also holds `result`. Only this function chooses between CPU
// and CUDA.
inline void pack(WireFormat format, std::span<const float> values, std::span<std::byte> wire,
                 ScanResult* result, StreamRef stream) {
  if (!stream.is_host()) return cuda::pack(format, values, wire, result, stream);
  *result = cpu::pack(format, values, wire);
}
inline void unpack(WireFormat format, std::span<const std::byte> wire, std::span<float> values,
                   StreamRef stream) {
  if (stream.is_host()) return cpu::unpack(format, wire, values);
  cuda::unpack(format, wire, values, stream);
}

}  // namespace sluiceway
