#include "kernels/adam.h"
#include "kernels/adam_checks.h"
#include "kernels/cuda/adam_formula.cuh"
#include "kernels/cuda/launch.cuh"
#include "kernels/cuda/noise.cuh"
#include "kernels/cuda/octet.cuh"
#include "kernels/decompress.h"

namespace sluiceway::cuda {
namespace {

// ---- What happens to a direction; each struct is the device's form of one weight of adam.h ------
//
// Call load(i, count, w) first, then step() for each element, then store(i, count, w).

template <typename Out>
struct Direction {
  Out* out;

  __device__ void load(std::int64_t, int, float (&)[kOctet]) const {}
  __device__ float step(const AdamCoefficients&, float, float direction) const { return direction; }
  __device__ void store(std::int64_t i, int count, const float (&x)[kOctet]) const {
    store_nearest(out + i, x, count);
  }
};

struct Stepped {
  __device__ static float step(const AdamCoefficients& c, float w, float direction) {
    return moved(c, w, direction);
  }
};

struct Master : Stepped {
  const float* in;
  float* out;

  __device__ void load(std::int64_t i, int count, float (&w)[kOctet]) const {
    load_values(in + i, count, w);
  }
  __device__ void store(std::int64_t i, int count, const float (&w)[kOctet]) const {
    store_nearest(out + i, w, count);
  }
};

template <typename T>
struct WithCopy : Master {
  T* copy;

  __device__ void store(std::int64_t i, int count, const float (&w)[kOctet]) const {
    store_nearest(out + i, w, count);
    store_nearest(copy + i, w, count);
  }
};

struct Stochastic : Stepped {
  const bf16* in;
  bf16* out;
  NoiseSource noise;
  std::uint64_t first;

  __device__ void load(std::int64_t i, int count, float (&w)[kOctet]) const {
    load_values(in + i, count, w);
  }
  __device__ void store(std::int64_t i, int count, const float (&w)[kOctet]) const {
    const Octet<std::uint16_t> bits = noise_octet(noise, first + static_cast<std::uint64_t>(i));
    store_octet(out + i, stochastic_octet(w, bits), count);
  }
};

struct HiLo : Stepped {
  const bf16* hi_in;
  const std::uint16_t* low_in;
  bf16* hi_out;
  std::uint16_t* low_out;

  __device__ void load(std::int64_t i, int count, float (&w)[kOctet]) const {
    const Octet<bf16> hi = load_octet(hi_in + i, count);
    const Octet<std::uint16_t> low = load_octet(low_in + i, count);
#pragma unroll
    for (int k = 0; k < kOctet; ++k) w[k] = join_residual(element_of(hi, k), element_of(low, k));
  }
  __device__ void store(std::int64_t i, int count, const float (&w)[kOctet]) const {
    Octet<bf16> hi;
    Octet<std::uint16_t> low;
#pragma unroll
    for (int k = 0; k < kOctet; ++k) {
      set_bits(hi, k, raw_bits(residual_hi(w[k])));
      set_bits(low, k, residual_low(w[k]));
    }
    store_octet(hi_out + i, hi, count);
    store_octet(low_out + i, low, count);
  }
};

Master on_device(const MasterWeight& w) { return {{}, w.in.data(), w.out.data()}; }
template <typename T>
WithCopy<T> on_device(const MasterAndCopy<T>& w) {
  return {{{}, w.in.data(), w.out.data()}, w.copy.data()};
}
Stochastic on_device(const StochasticWeight& w) {
  return {{}, w.in.data(), w.out.data(), NoiseSource::of(w.key), w.first};
}
HiLo on_device(const HiLoWeight& w) {
  return {{}, w.hi_in.data(), w.low_in.data(), w.hi_out.data(), w.low_out.data()};
}

// ---- The pass ----------------------------------------------------------------------------------

template <typename G>
struct AdamArrays {
  const G* g;
  const float *m_in, *v_in;
  float *m_out, *v_out;
};

// Each thread takes an octet of every array and loads all of them before it stores the first. Whole
// warps call this, as the noise requires. Loads are of 16 bytes: for a 16-bit type a warp reads 512
// contiguous bytes, for f32 twice as many. The roof is memory: sizeof(G) + 16 bytes an element for
// gradient and moments, plus the bytes of the weight; 20 flop, and 9 more integer instructions an
// element for stochastic rounding.
template <typename G, class Weight>
__global__ void adam_pass(AdamCoefficients c, AdamArrays<G> arrays, std::int64_t n, Weight weight) {
  const std::int64_t i = (std::int64_t{blockIdx.x} * blockDim.x + threadIdx.x) * kOctet;
  const int count = octet_count(i, n);
  float g[kOctet], m[kOctet], v[kOctet], w[kOctet] = {};
  load_values(arrays.g + i, count, g);
  load_values(arrays.m_in + i, count, m);
  load_values(arrays.v_in + i, count, v);
  weight.load(i, count, w);
#pragma unroll
  for (int k = 0; k < kOctet; ++k) {
    w[k] = weight.step(c, w[k], adam_direction_of(c, g[k], m[k], v[k]));
  }
  store_nearest(arrays.m_out + i, m, count);
  store_nearest(arrays.v_out + i, v, count);
  weight.store(i, count, w);
}

template <typename G, class Weight>
void run_adam(const char* name, std::span<const G> g, float grad_scale, const AdamMoments& moments,
              const AdamHyper& hyper, const Weight& weight, StreamRef stream) {
  constexpr std::size_t kBlockElems = std::size_t{kMaxThreads} * kOctet;
  const auto grid = static_cast<unsigned>((g.size() + kBlockElems - 1) / kBlockElems);
  const AdamArrays<G> arrays{g.data(), moments.m_in.data(), moments.v_in.data(),
                             moments.m_out.data(), moments.v_out.data()};
  launch(name, Kernel<adam_pass<G, Weight>>(), {grid, kMaxThreads}, stream,
         AdamCoefficients::of(grad_scale, hyper), arrays, static_cast<std::int64_t>(g.size()),
         weight);
}

}  // namespace

template <typename G, typename D>
void adam_direction(std::span<const G> g, float grad_scale, const AdamMoments& moments,
                    const AdamHyper& hyper, std::span<D> d, StreamRef stream) {
  check_adam_direction(g, moments, hyper, d);
  run_adam("adam_direction", g, grad_scale, moments, hyper, Direction<D>{d.data()}, stream);
}

template <typename G, typename Weight>
void adam_step(std::span<const G> g, float grad_scale, const AdamMoments& moments,
               const AdamHyper& hyper, const Weight& w, StreamRef stream) {
  check_adam_step(g, moments, hyper, w);
  run_adam("adam_step", g, grad_scale, moments, hyper, on_device(w), stream);
}

#define SLUICEWAY_STEP(G, Weight)                                                          \
  template void adam_step(std::span<const G>, float, const AdamMoments&, const AdamHyper&, \
                          const Weight&, StreamRef)
#define SLUICEWAY_INSTANTIATE(G)                                                                \
  template void adam_direction(std::span<const G>, float, const AdamMoments&, const AdamHyper&, \
                               std::span<float>, StreamRef);                                    \
  template void adam_direction(std::span<const G>, float, const AdamMoments&, const AdamHyper&, \
                               std::span<bf16>, StreamRef);                                     \
  SLUICEWAY_STEP(G, MasterWeight);                                                              \
  SLUICEWAY_STEP(G, MasterAndCopy<f16>);                                                        \
  SLUICEWAY_STEP(G, MasterAndCopy<bf16>);                                                       \
  SLUICEWAY_STEP(G, StochasticWeight);                                                          \
  SLUICEWAY_STEP(G, HiLoWeight)

SLUICEWAY_INSTANTIATE(float);
SLUICEWAY_INSTANTIATE(f16);
SLUICEWAY_INSTANTIATE(bf16);
#undef SLUICEWAY_INSTANTIATE
#undef SLUICEWAY_STEP

}  // namespace sluiceway::cuda
