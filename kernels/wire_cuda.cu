#include <limits>

#include "kernels/array_checks.h"
#include "kernels/cuda/scan.cuh"
#include "kernels/wire.h"

namespace sluiceway::cuda {
namespace {

constexpr int kGroupLanes = static_cast<int>(kWireGroup) / kOctet;  // Lanes that share a scale.
constexpr float kSmallestScale = std::numeric_limits<float>::min();

// Returns the largest |x| of a group in all of its lanes, as bits: a NaN wins.
__device__ inline std::uint32_t group_max_bits(const float (&x)[kOctet]) {
  std::uint32_t largest = 0;
#pragma unroll
  for (int k = 0; k < kOctet; ++k) {
    const std::uint32_t magnitude = __float_as_uint(x[k]) & 0x7FFFFFFFU;
    largest = magnitude > largest ? magnitude : largest;
  }
#pragma unroll
  for (int mask = kGroupLanes / 2; mask > 0; mask /= 2) {
    const std::uint32_t other = __shfl_xor_sync(kWholeWarp, largest, mask);
    largest = other > largest ? other : largest;
  }
  return largest;
}

// Returns eight codes, lowest first, in two words. Adding 1.5 * 2^23 leaves the integer, rounded to
// nearest even, in the low mantissa bits; the product is rounded before, as on the CPU.
__device__ inline uint2 codes_of(const float (&x)[kOctet], float inverse) {
  constexpr float kMagic = 0x1.8p23F;
  std::uint32_t word[2] = {0, 0};
#pragma unroll
  for (int k = 0; k < kOctet; ++k) {
    const float shifted = __fadd_rn(__fmul_rn(x[k], inverse), kMagic);
    const std::uint32_t code = __float_as_uint(shifted) - __float_as_uint(kMagic);
    word[k / 4] |= (code & 0xFFU) << (8 * (k % 4));
  }
  return make_uint2(word[0], word[1]);
}

// Eight lanes have a group, so finding its scale takes three shuffles and no shared memory. Reads 4
// n bytes and writes n (1 + 4 / 64). A lane stores its codes as two words: the scales in front of
// them leave only an alignment to four bytes.
struct PackInt8 {
  const float* values;
  float* scales;
  std::uint8_t* codes;

  __device__ void take(std::int64_t, std::int64_t i, int count, float (&out)[kOctet]) const {
    load_values(values + i, count, out);
    const std::uint32_t bits = group_max_bits(out);
    const float scale = __fdiv_rn(__uint_as_float(bits), 127.0F);
    const bool finite = bits < kInfinityBits, codable = finite && scale >= kSmallestScale;
    if (count > 0 && i % kWireGroup == 0) {
      scales[i / kWireGroup] = codable ? scale : finite ? 0.0F : __uint_as_float(0x7FC00000U);
    }
    const uint2 packed = codable ? codes_of(out, __fdiv_rn(1.0F, scale)) : make_uint2(0, 0);
    if (count == kOctet) {
      auto* const words = reinterpret_cast<std::uint32_t*>(codes + i);
      words[0] = packed.x;
      words[1] = packed.y;
      return;
    }
#pragma unroll
    for (int k = 0; k < kOctet; ++k) {
      const std::uint32_t word = k < 4 ? packed.x : packed.y;
      if (k < count) codes[i + k] = static_cast<std::uint8_t>(word >> (8 * (k % 4)));
    }
  }
};

// ---- Unpacking ---------------------------------------------------------------------------------

template <typename T>
struct Plain {  // Reads n sizeof(T) bytes and writes 4 n.
  const T* wire;

  __device__ void load(std::int64_t i, int count, float (&x)[kOctet]) const {
    load_values(wire + i, count, x);
  }
};

struct Scaled {  // Reads n (1 + 4 / 64) bytes and writes 4 n.
  const float* scales;
  const std::int8_t* codes;

  __device__ void load(std::int64_t i, int count, float (&x)[kOctet]) const {
    const float scale = count > 0 ? scales[i / kWireGroup] : 0.0F;
    std::uint32_t word[2] = {0, 0};
    if (count == kOctet) {
      const auto* const words = reinterpret_cast<const std::uint32_t*>(codes + i);
      word[0] = words[0];
      word[1] = words[1];
    } else {
#pragma unroll
      for (int k = 0; k < kOctet; ++k) {
        const auto code = k < count ? static_cast<std::uint8_t>(codes[i + k]) : std::uint8_t{0};
        word[k / 4] |= std::uint32_t{code} << (8 * (k % 4));
      }
    }
#pragma unroll
    for (int k = 0; k < kOctet; ++k) {
      const auto code = static_cast<std::int8_t>(word[k / 4] >> (8 * (k % 4)) & 0xFFU);
      x[k] = __fmul_rn(static_cast<float>(code), scale);
    }
  }
};

// Each thread has an octet, stored as two adjacent stores of 16 bytes. Roof: 4 n bytes written and
// the bytes of the wire that Wire::load reads: 4 n for f32, 2 n for bf16, n (1 + 4 / 64) for int8;
// n flop for int8.
template <class Wire>
__global__ void unpack_wire(Wire wire, float* values, std::int64_t n) {
  const std::int64_t i = (std::int64_t{blockIdx.x} * blockDim.x + threadIdx.x) * kOctet;
  const int count = octet_count(i, n);
  float x[kOctet];
  wire.load(i, count, x);
  store_nearest(values + i, x, count);
}

template <class Wire>
void run_unpack(const Wire& wire, std::span<float> values, StreamRef stream) {
  const auto n = static_cast<std::int64_t>(values.size());
  const auto grid = static_cast<unsigned>((n + kScanTile - 1) / kScanTile);
  launch("unpack", Kernel<unpack_wire<Wire>>(), {grid, kMaxThreads}, stream, wire, values.data(),
         n);
}

}  // namespace

void pack(WireFormat format, std::span<const float> values, std::span<std::byte> wire,
          ScanResult* result, StreamRef stream) {
  check_wire("pack", format, wire, values.size());
  const auto n = static_cast<std::int64_t>(values.size());
  auto* const floats = reinterpret_cast<float*>(wire.data());
  switch (format) {
    case WireFormat::kF32:
      return cuda::overflow_scan_copy(values, std::span(floats, values.size()), result, stream);
    case WireFormat::kBF16:
      return cuda::overflow_scan_copy(
          values, std::span(reinterpret_cast<bf16*>(wire.data()), values.size()), result, stream);
    case WireFormat::kInt8:
      break;
  }
  auto* const codes = reinterpret_cast<std::uint8_t*>(floats + wire_groups(n));
  run_scan("pack", PackInt8{values.data(), floats, codes}, 1, n, result, stream);
}

void unpack(WireFormat format, std::span<const std::byte> wire, std::span<float> values,
            StreamRef stream) {
  check_wire("unpack", format, wire, values.size());
  const auto n = static_cast<std::int64_t>(values.size());
  const auto* const floats = reinterpret_cast<const float*>(wire.data());
  switch (format) {
    case WireFormat::kF32:
      return run_unpack(Plain<float>{floats}, values, stream);
    case WireFormat::kBF16:
      return run_unpack(Plain<bf16>{reinterpret_cast<const bf16*>(wire.data())}, values, stream);
    case WireFormat::kInt8:
      break;
  }
  const auto* const codes = reinterpret_cast<const std::int8_t*>(floats + wire_groups(n));
  run_unpack(Scaled{floats, codes}, values, stream);
}

}  // namespace sluiceway::cuda
