#include "kernels/cuda/fp8_image.cuh"
#include "kernels/cuda/launch.cuh"
#include "kernels/cuda/noise_tile.cuh"
#include "kernels/cuda/theta.cuh"
#include "kernels/perturb.h"
#include "kernels/perturb_checks.h"

namespace sluiceway::cuda {
namespace {

// An Input, or an fp8 image, for which the type does not matter.
struct WeightInput : Input {
  bool is_fp8_image;

  __device__ void load(const TilePart& part, float (&x)[kOctet]) const {
    if (is_fp8_image) return Fp8Elements{static_cast<const std::uint8_t*>(data)}.load(part, x);
    Input::load(part, x);
  }
};

struct Draw {
  NoiseSource source;
  float scale;
};

// A kernel's parameters: the pending updates, followed by the direction of perturb().
template <unsigned kCapacity>
struct Draws {
  unsigned count = 0, pending = 0;
  Draw draw[kCapacity]{};
};

// A block has one tile, a thread eight elements, which stay in registers from the load to the
// store. Roof: the bytes of w and of the output; from some tens of pending updates on, arithmetic.
template <class Noise, class Sink, unsigned kCapacity>
__global__ void update_tiles(WeightInput w, std::int64_t elems, std::uint64_t first, float gamma,
                             Sink sink, NoiseTables tables, Draws<kCapacity> draws) {
  __shared__ std::uint32_t drawn[Noise::kKeys * Noise::kWords];
  __shared__ float quantiles[128];
  if (threadIdx.x < 128) quantiles[threadIdx.x] = tables.quantiles[threadIdx.x];
  const std::uint64_t tile = first / kTileElems + blockIdx.x;
  const TilePart part = TilePart::of_thread(tile, first, elems);
  float a[kOctet], z[kOctet];
  w.load(part, a);
  constexpr unsigned kThreadsOfKey = kTileThreads / Noise::kKeys;
  const unsigned mine = threadIdx.x / kThreadsOfKey;
  for (unsigned base = 0; base < draws.count; base += Noise::kKeys) {
    if (base + mine < draws.count) {
      Noise::draw(draws.draw[base + mine].source, tile, threadIdx.x % kThreadsOfKey, tables,
                  drawn + mine * Noise::kWords);
    }
    __syncthreads();
    for (unsigned i = 0; i < Noise::kKeys && base + i < draws.count; ++i) {
      const float scale = draws.draw[base + i].scale;
#pragma unroll
      for (unsigned k = 0; k < kOctet; ++k) {
        z[k] = Noise::value(drawn + i * Noise::kWords, k, quantiles);
      }
      if (base + i < draws.pending) {
#pragma unroll
        for (int k = 0; k < kOctet; ++k) a[k] = __fmaf_rn(scale, z[k], a[k]);
      } else {
        float theta[kOctet];
#pragma unroll
        for (int k = 0; k < kOctet; ++k) theta[k] = __fmul_rn(gamma, a[k]);
        sink.direction(scale, z, theta, part);
      }
    }
    __syncthreads();  // Before the next keys overwrite the words.
  }
#pragma unroll
  for (int k = 0; k < kOctet; ++k) a[k] = __fmul_rn(gamma, a[k]);
  sink.finish(a, tile * kTileElems + kOctet * threadIdx.x, part);
}

template <unsigned kCapacity, class Sink>
void launch_updates(const char* name, const WeightInput& w, std::size_t elems, const Theta& theta,
                    const Draw* direction, const Sink& sink, StreamRef stream) {
  Draws<kCapacity> draws;
  for (const PendingUpdate& update : theta.pending) {
    draws.draw[draws.count++] = {NoiseSource::of(update.key), update.scale};
  }
  draws.pending = draws.count;
  if (direction != nullptr) draws.draw[draws.count++] = *direction;
  with_family(theta.family, [&]<class Noise>(Noise) {
    launch(name, Kernel<update_tiles<Noise, Sink, kCapacity>>(),
           {tiles_of(theta.first, elems), kTileThreads}, stream, w,
           static_cast<std::int64_t>(elems), theta.first, theta.gamma, sink, NoiseTables::of_host(),
           draws);
  });
}

// Launches with as small a capacity as fits: parameters are copied for each launch.
template <class Sink>
void update(const char* name, const WeightInput& w, std::size_t elems, const Theta& theta,
            const Draw* direction, const Sink& sink, StreamRef stream) {
  constexpr unsigned kFew = 32;
  if (theta.pending.size() < kFew) {
    return launch_updates<kFew>(name, w, elems, theta, direction, sink, stream);
  }
  launch_updates<kMaxPending + 1>(name, w, elems, theta, direction, sink, stream);
}

WeightInput input_of(std::span<const std::byte> w, WeightForm form) {
  return {{w.data(), form.dtype()}, form.is_fp8_image()};
}

}  // namespace

void perturb(std::span<const std::byte> w, WeightForm w_form, std::span<std::byte> plus,
             std::span<std::byte> minus, DType out_dtype, const Theta& theta, const NoiseKey& key,
             float eps, StreamRef stream) {
  const std::size_t elems = check_perturbed("perturb", w, w_form, theta);
  check_written("perturb", "plus", plus, out_dtype, elems);
  check_written("perturb", "minus", minus, out_dtype, elems);
  const Draw direction{NoiseSource::of(key), eps};
  update("perturb", input_of(w, w_form), elems, theta, &direction,
         BothSides{plus.data(), minus.data(), out_dtype}, stream);
}

void materialise(std::span<const std::byte> w, WeightForm w_form, std::span<std::byte> out,
                 DType out_dtype, const Theta& theta, Rounding rounding,
                 const NoiseKey& rounding_key, StreamRef stream) {
  const std::size_t elems = check_perturbed("materialise", w, w_form, theta);
  check_written("materialise", "out", out, out_dtype, elems);
  check_rounding_of("materialise", out_dtype, rounding);
  update("materialise", input_of(w, w_form), elems, theta, nullptr,
         ThetaAlone{out.data(), out_dtype, rounding == Rounding::kStochastic,
                    NoiseSource::of(rounding_key)},
         stream);
}

}  // namespace sluiceway::cuda
