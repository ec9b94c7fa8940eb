// A weight as the log of a zeroth-order run defines it, and its two perturbed neighbours.
//
//   a_0 = w,  a_{k+1} = fma(scale_k, z_k, a_k)         the pending updates, in their order
//   theta = gamma a_K
//   plus  = round(fma(+eps, z, theta))                 perturb()
//   minus = round(fma(-eps, z, theta))
//   out   = round(theta)                               materialise()
//
//   name         shape   dtype                                      access
//   w            n       f32 | f16 | bf16 | an image (fp8_image.h)  read
//   plus, minus  n       f32 | f16 | bf16                           write; one type for both
//   out          n       f32 | f16 | bf16                           write
//
// Element k of these arrays is element theta.first + k of the tensor that the keys name (noise.h).
//
// Numerics: f32, each line above one rounding; then to nearest even, or, for bf16, stochastically
//           with noise_16(rounding_key, element) like decompress(). Equal bits on every instruction
//           set and device and for any split of the elements, except for the payload of a NaN,
//           which stays a NaN. A scale of 0 may turn -0 into +0 and changes nothing else. If a
//           thread flushes denormals (runtime/device/denormals.h), so do these.
// Aliasing: plus and minus overlap nothing. `out` is disjoint from w, or w itself if the types are
//           equal.
// Errors:   InvalidArgument, before any element changes, for sizes that differ (it names both), for
//           more than kMaxPending updates, and for a rounding that the type of `out` does not
//           support.
// Cost:     perturb() reads w once and writes plus and minus once, without a temporary in memory.
//           Each pending update draws its noise again (noise.h) and adds 2 flop an element.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "kernels/base/dtype.h"
#include "kernels/base/stream_ref.h"
#include "kernels/decompress.h"
#include "kernels/noise.h"
#include "kernels/philox.h"
#include "kernels/weight_form.h"

namespace sluiceway {

struct PendingUpdate {
  NoiseKey key;  // Draws its z.
  float scale = 0.0F;
};

// As many as fit beside a CUDA kernel's other parameters. If you have more, consolidate, or call
// materialise() into f32 first, which gives the same bits if gamma of that call is 1.
inline constexpr std::size_t kMaxPending = 1024;

// How w changes before it is perturbed.
struct Theta {
  NoiseFamily family = NoiseFamily::kRademacher;  // Family of every z in the call.
  std::uint64_t first = 0;                        // Index of w[0] in the tensor.
  float gamma = 1.0F;
  std::span<const PendingUpdate> pending{};  // Host memory, read before the call returns.
};

}  // namespace sluiceway

namespace sluiceway::cpu {

// Run on the calling thread. To parallelise, split into ranges and add the start of each to
// theta.first; ranges that start at a multiple of noise_unit() draw no bit twice.
void perturb(std::span<const std::byte> w, WeightForm w_form, std::span<std::byte> plus,
             std::span<std::byte> minus, DType out_dtype, const Theta& theta, const NoiseKey& key,
             float eps);
void materialise(std::span<const std::byte> w, WeightForm w_form, std::span<std::byte> out,
                 DType out_dtype, const Theta& theta, Rounding rounding = Rounding::kNearest,
                 const NoiseKey& rounding_key = {});

}  // namespace sluiceway::cpu

namespace sluiceway::cuda {

// Enqueue on `stream`; arrays are device memory and stay valid until the work has run. Throw
// Unavailable in a build without CUDA, CudaError if the launch fails.
void perturb(std::span<const std::byte> w, WeightForm w_form, std::span<std::byte> plus,
             std::span<std::byte> minus, DType out_dtype, const Theta& theta, const NoiseKey& key,
             float eps, StreamRef stream);
void materialise(std::span<const std::byte> w, WeightForm w_form, std::span<std::byte> out,
                 DType out_dtype, const Theta& theta, Rounding rounding,
                 const NoiseKey& rounding_key, StreamRef stream);

}  // namespace sluiceway::cuda

namespace sluiceway {

// Runs on the device of `stream`. Only this function chooses between CPU and CUDA.
inline void perturb(std::span<const std::byte> w, WeightForm w_form, std::span<std::byte> plus,
                    std::span<std::byte> minus, DType out_dtype, const Theta& theta,
                    const NoiseKey& key, float eps, StreamRef stream) {
  if (stream.is_host()) {
    return cpu::perturb(w, w_form, plus, minus, out_dtype, theta, key, eps);
  }
  cuda::perturb(w, w_form, plus, minus, out_dtype, theta, key, eps, stream);
}
inline void materialise(std::span<const std::byte> w, WeightForm w_form, std::span<std::byte> out,
                        DType out_dtype, const Theta& theta, Rounding rounding,
                        const NoiseKey& rounding_key, StreamRef stream) {
  if (stream.is_host()) {
    return cpu::materialise(w, w_form, out, out_dtype, theta, rounding, rounding_key);
  }
  cuda::materialise(w, w_form, out, out_dtype, theta, rounding, rounding_key, stream);
}

}  // namespace sluiceway
