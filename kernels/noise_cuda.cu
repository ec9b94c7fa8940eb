#include "kernels/cuda/launch.cuh"
#include "kernels/cuda/noise_tile.cuh"
#include "kernels/noise.h"

namespace sluiceway::cuda {
namespace {

// A block draws one tile. Roof: 4 bytes written an element; for Gaussian noise, integer arithmetic.
template <class Noise>
__global__ void draw_tiles(float* out, std::int64_t elems, std::uint64_t first, NoiseSource source,
                           NoiseTables tables) {
  __shared__ std::uint32_t drawn[Noise::kWords];
  __shared__ float quantiles[128];
  if (threadIdx.x < 128) quantiles[threadIdx.x] = tables.quantiles[threadIdx.x];
  const std::uint64_t tile = first / kTileElems + blockIdx.x;
  if (threadIdx.x < kTileThreads / Noise::kKeys) {
    Noise::draw(source, tile, threadIdx.x, tables, drawn);
  }
  __syncthreads();
  float z[kOctet];
#pragma unroll
  for (unsigned k = 0; k < kOctet; ++k) z[k] = Noise::value(drawn, k, quantiles);
  TilePart::of_thread(tile, first, elems).store(out, nearest_octet<float>(z));
}

}  // namespace

void draw_noise(std::span<float> out, const NoiseKey& key, std::uint64_t first, NoiseFamily family,
                StreamRef stream) {
  with_family(family, [&]<class Noise>(Noise) {
    launch("draw_noise", Kernel<draw_tiles<Noise>>(), {tiles_of(first, out.size()), kTileThreads},
           stream, out.data(), static_cast<std::int64_t>(out.size()), first, NoiseSource::of(key),
           NoiseTables::of_host());
  });
}

}  // namespace sluiceway::cuda
