// A weight as the log of a zeroth-order run says it is, and its two perturbed neighbours.
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
//           with noise_16(rounding_key, element) as decompress() does. Equal bits on every
//           instruction set and device and for any split of the elements, but for the payload of a
//           NaN, which stays one. A scale of 0 may turn -0 into +0 and changes nothing else.
//           Where a thread flushes denormals (runtime/device/denormals.h), so do these.
// Aliasing: plus and minus overlap nothing. `out` is disjoint from w, or w itself where the types
//           are equal.
// Errors:   InvalidArgument, naming both sizes, before any element changes; more than kMaxPending
//           updates; a rounding that the type of `out` does not have.
// Cost:     perturb() reads w once and writes plus and minus once; no temporary in memory. Each
//           pending update draws its noise again (noise.h) and adds 2 flop an element.
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
  NoiseKey key;  // Of its z.
  float scale = 0.0F;
};

// As many fit beside a CUDA kernel's other parameters. Consolidate, or materialise() into f32 in
// two calls, which gives the same bits while gamma of the first is 1.
inline constexpr std::size_t kMaxPending = 1024;

// What w becomes before it is perturbed.
struct Theta {
  NoiseFamily family = NoiseFamily::kRademacher;  // Of every z in the call.
  std::uint64_t first = 0;                        // The tensor's element that w[0] is.
  float gamma = 1.0F;
  std::span<const PendingUpdate> pending{};  // Host memory, read before the call returns.
};

}  // namespace sluiceway

namespace sluiceway::cpu {

// Run on the calling thread. A caller goes parallel over ranges, adding their start to theta.first;
// ranges that start at a multiple of noise_unit() draw no bit twice.
void perturb(std::span<const std::byte> w, WeightForm w_form, std::span<std::byte> plus,
             std::span<std::byte> minus, DType out_dtype, const Theta& theta, const NoiseKey& key,
             float eps);
void materialise(std::span<const std::byte> w, WeightForm w_form, std::span<std::byte> out,
                 DType out_dtype, const Theta& theta, Rounding rounding = Rounding::kNearest,
                 const NoiseKey& rounding_key = {});

}  // namespace sluiceway::cpu

namespace sluiceway::cuda {

// Enqueue on `stream`; arrays are device memory and stay valid until then. Unavailable where this
// build has no such half, CudaError if the launch is refused.
void perturb(std::span<const std::byte> w, WeightForm w_form, std::span<std::byte> plus,
             std::span<std::byte> minus, DType out_dtype, const Theta& theta, const NoiseKey& key,
             float eps, StreamRef stream);
void materialise(std::span<const std::byte> w, WeightForm w_form, std::span<std::byte> out,
                 DType out_dtype, const Theta& theta, Rounding rounding,
                 const NoiseKey& rounding_key, StreamRef stream);

}  // namespace sluiceway::cuda

namespace sluiceway {

// On the device of `stream`: the only place that chooses between the halves.
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
