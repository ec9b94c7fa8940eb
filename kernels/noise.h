// Noise for a weight's elements: z of element i of a key is a pure function of (family, key, i).
//
// Words are the stream words of philox.h; `/` and `%` are integer operations.
//
//   family        z of element i                                             bits an element
//   Rademacher    +1 or -1: -1 where bit 31 - (i / 16) % 32 of stream        1
//                 word 64 (i / 2048) + 16 (i % 2048 / 512) + i % 16 is set
//   ByteQuantile  of byte b = (i / 16) % 4 (lowest first) of stream word     8
//                 64 (i / 256) + 16 (i % 256 / 64) + i % 16: bits 0 to 6
//                 choose of kNoiseQuantiles, bit 7 set makes it negative
//   Gaussian      Box-Muller [Box 1958] of words u = 32 (i / 32) + i % 16    32
//                 and v = u + 16: r cos where i % 32 < 16, else r sin
//
//   r   = sqrt(-2 ln U), U = fma(float(u >> 1), 2^-31, 2^-32), so that |z| <= 6.661
//   ln  : U = 2^e m with 0x1.6a09e6p-1 <= m < 2 * 0x1.6a09e6p-1; f = m - 1;
//         ln U = fma(e, ln 2, fma(f f, kLogTerms(f), f))
//   q   = (v + 2^29) >> 30 mod 4, t = float(int(v - q 2^30)) 2^-32: the angle is q / 4 + t turns
//   cos = fma(s, kCosTerms(s), 1), sin = t kSinTerms(s), s = t t, exchanged and signed by q
//
// Polynomials use Horner's rule, one fma a term; float() rounds to nearest even. Lane l of 16
// adjacent elements needs only lane l of the words, so SIMD code expands without shuffles.
//
// Numerics: uses only integers, multiplication, sqrt and fma, all IEEE-exact: equal bits on every
//           instruction set, on a device, for any tiling. Gaussian is within 5e-7 max(|z|, 1) of
//           the formula in exact arithmetic; the tail ends at 6.661 standard deviations (a Gaussian
//           exceeds that with probability 2.7e-11). ByteQuantile: mean 0 exactly, variance 1 to
//           1e-8, fourth moment 2.92; |z| <= 2.893.
// Cost:     Philox's (philox.h) for the bits above; Gaussian: about 20 more flop an element.
// Source:   [Box 1958] "A note on the generation of random normal deviates".
// Thread safety: pure functions.
#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <string_view>

#include "kernels/base/stream_ref.h"
#include "kernels/philox.h"

namespace sluiceway {

enum class NoiseFamily : std::uint8_t { kRademacher, kByteQuantile, kGaussian };

constexpr std::string_view to_string(NoiseFamily family) noexcept {
  switch (family) {
    case NoiseFamily::kRademacher:
      return "rademacher";
    case NoiseFamily::kByteQuantile:
      return "byte_quantile";
    case NoiseFamily::kGaussian:
      return "gaussian";
  }
  return "?";
}

// Returns the elements of one unit, which needs 64 whole stream words.
constexpr std::uint64_t noise_unit(NoiseFamily family) noexcept {
  return family == NoiseFamily::kRademacher     ? 2048
         : family == NoiseFamily::kByteQuantile ? 256
                                                : 64;
}

// c Phi^-1((128.5 + j) / 256), with the c = 1.00251805979989842 that makes the variance 1.
inline constexpr std::array<float, 128> kNoiseQuantiles = {
    0x1.41a85ap-8F, 0x1.e2807ap-7F, 0x1.921c5p-6F,  0x1.19812p-5F,  0x1.69fb06p-5F, 0x1.ba7ddp-5F,
    0x1.0585cp-4F,  0x1.2dd30ap-4F, 0x1.5627c6p-4F, 0x1.7e84f8p-4F, 0x1.a6eba2p-4F, 0x1.cf5ccap-4F,
    0x1.f7d976p-4F, 0x1.103158p-3F, 0x1.247cc2p-3F, 0x1.38cf8p-3F,  0x1.4d2a1ap-3F, 0x1.618d18p-3F,
    0x1.75f906p-3F, 0x1.8a6e74p-3F, 0x1.9eedeap-3F, 0x1.b377fep-3F, 0x1.c80d4p-3F,  0x1.dcae44p-3F,
    0x1.f15ba2p-3F, 0x1.030afap-2F, 0x1.0d6ee8p-2F, 0x1.17d9ecp-2F, 0x1.224c56p-2F, 0x1.2cc678p-2F,
    0x1.3748a6p-2F, 0x1.41d334p-2F, 0x1.4c667ap-2F, 0x1.5702cep-2F, 0x1.61a88ep-2F, 0x1.6c5812p-2F,
    0x1.7711bcp-2F, 0x1.81d5eap-2F, 0x1.8ca502p-2F, 0x1.977f66p-2F, 0x1.a26582p-2F, 0x1.ad57bcp-2F,
    0x1.b85684p-2F, 0x1.c3624ap-2F, 0x1.ce7b82p-2F, 0x1.d9a2ap-2F,  0x1.e4d822p-2F, 0x1.f01c84p-2F,
    0x1.fb7048p-2F, 0x1.0369f8p-1F, 0x1.092406p-1F, 0x1.0ee694p-1F, 0x1.14b1eap-1F, 0x1.1a8654p-1F,
    0x1.206424p-1F, 0x1.264ba8p-1F, 0x1.2c3d34p-1F, 0x1.32392p-1F,  0x1.383fc8p-1F, 0x1.3e518ap-1F,
    0x1.446ec4p-1F, 0x1.4a97ep-1F,  0x1.50cd44p-1F, 0x1.570f6p-1F,  0x1.5d5ea4p-1F, 0x1.63bb8cp-1F,
    0x1.6a269p-1F,  0x1.70a034p-1F, 0x1.7729p-1F,   0x1.7dc182p-1F, 0x1.846a5p-1F,  0x1.8b2404p-1F,
    0x1.91ef44p-1F, 0x1.98ccbcp-1F, 0x1.9fbd2p-1F,  0x1.a6c12ep-1F, 0x1.add9bp-1F,  0x1.b5077ap-1F,
    0x1.bc4b68p-1F, 0x1.c3a66ap-1F, 0x1.cb1978p-1F, 0x1.d2a59cp-1F, 0x1.da4becp-1F, 0x1.e20d96p-1F,
    0x1.e9ebd8p-1F, 0x1.f1e8p-1F,   0x1.fa037ep-1F, 0x1.011fe8p+0F, 0x1.054f48p+0F, 0x1.0990c2p+0F,
    0x1.0de54p+0F,  0x1.124dc6p+0F, 0x1.16cb66p+0F, 0x1.1b5f4ep+0F, 0x1.200ac2p+0F, 0x1.24cf22p+0F,
    0x1.29adfp+0F,  0x1.2ea8cep+0F, 0x1.33c188p+0F, 0x1.38fa18p+0F, 0x1.3e54a8p+0F, 0x1.43d3a4p+0F,
    0x1.4979b2p+0F, 0x1.4f49dp+0F,  0x1.55475p+0F,  0x1.5b75f2p+0F, 0x1.61d9f2p+0F, 0x1.68782p+0F,
    0x1.6f55fep+0F, 0x1.7679ep+0F,  0x1.7deb22p+0F, 0x1.85b25ap+0F, 0x1.8dd9aap+0F, 0x1.966d28p+0F,
    0x1.9f7b66p+0F, 0x1.a9162cp+0F, 0x1.b3538ep+0F, 0x1.be4f64p+0F, 0x1.ca2d92p+0F, 0x1.d71d8p+0F,
    0x1.e55fb2p+0F, 0x1.f54f5ep+0F, 0x1.03b9e2p+1F, 0x1.0e5162p+1F, 0x1.1b272p+1F,  0x1.2ba99ap+1F,
    0x1.436fcap+1F, 0x1.724a96p+1F};

// Minimax fits, lowest term first, of (ln(1 + f) - f) / f^2 for 2^-1/2 <= 1 + f < 2^1/2 (3e-8 of
// the logarithm), and of sin(2 pi t) / t and (cos(2 pi t) - 1) / t^2 in t^2, |t| <= 1/8 (4e-9).
inline constexpr std::array<float, 8> kLogTerms = {-0x1.fffffap-2F, 0x1.5556f4p-2F, -0x1.00049ap-2F,
                                                   0x1.98d2cp-3F,   -0x1.535d3p-3F, 0x1.318526p-3F,
                                                   -0x1.25049ap-3F, 0x1.65c766p-4F};
inline constexpr std::array<float, 4> kSinTerms = {0x1.921fb6p+2F, -0x1.4abbbap+5F, 0x1.465e92p+6F,
                                                   -0x1.2d9302p+6F};
inline constexpr std::array<float, 4> kCosTerms = {-0x1.3bd3ccp+4F, 0x1.03c1dep+6F, -0x1.55c664p+6F,
                                                   0x1.d9f7bcp+5F};
inline constexpr float kLn2 = 0x1.62e43p-1F;

}  // namespace sluiceway

namespace sluiceway::cpu {

// Writes z of element first + k to out[k]. Runs on the calling thread.
void draw_noise(std::span<float> out, const NoiseKey& key, std::uint64_t first, NoiseFamily family);

}  // namespace sluiceway::cpu

namespace sluiceway::cuda {

// Enqueues on `stream`; `out` is device memory. Throws Unavailable in a build without CUDA.
void draw_noise(std::span<float> out, const NoiseKey& key, std::uint64_t first, NoiseFamily family,
                StreamRef stream);

}  // namespace sluiceway::cuda

namespace sluiceway {

// Runs on the device of `stream`. Only this function chooses between CPU and CUDA.
inline void draw_noise(std::span<float> out, const NoiseKey& key, std::uint64_t first,
                       NoiseFamily family, StreamRef stream) {
  if (stream.is_host()) return cpu::draw_noise(out, key, first, family);
  cuda::draw_noise(out, key, first, family, stream);
}

}  // namespace sluiceway
