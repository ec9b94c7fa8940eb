#include <cuda_runtime.h>

#include "experiments/bench/device/device_clock.h"
#include "experiments/bench/device/device_roof.h"
#include "kernels/cuda/launch.cuh"
#include "tests/support/device_array.h"

namespace sluiceway::bench {
namespace {

constexpr unsigned kThreads = 256;
constexpr int kSums = 8;  // Of a thread, which hide each other's latency.

// Each does nothing but its traffic: 16 bytes a lane, side by side, a stride of the whole grid.
__global__ void read_all(const float4* a, std::int64_t fours, float* kept) {
  const std::int64_t stride = std::int64_t{gridDim.x} * blockDim.x;
  float sum = 0.0F;
#pragma unroll 4
  for (std::int64_t i = std::int64_t{blockIdx.x} * blockDim.x + threadIdx.x; i < fours;
       i += stride) {
    const float4 x = a[i];
    sum += x.x + x.y + x.z + x.w;
  }
  if (sum == 0.5F) *kept = sum;  // Never, since all elements are 1; the compiler cannot know.
}

__global__ void copy_all(const float4* a, float4* b, std::int64_t fours) {
  const std::int64_t stride = std::int64_t{gridDim.x} * blockDim.x;
#pragma unroll 4
  for (std::int64_t i = std::int64_t{blockIdx.x} * blockDim.x + threadIdx.x; i < fours;
       i += stride) {
    const float4 x = a[i];
    b[i] = x;
  }
}

__global__ void triad_all(const float4* a, const float4* b, float4* c, std::int64_t fours) {
  const std::int64_t stride = std::int64_t{gridDim.x} * blockDim.x;
#pragma unroll 4
  for (std::int64_t i = std::int64_t{blockIdx.x} * blockDim.x + threadIdx.x; i < fours;
       i += stride) {
    const float4 x = a[i], y = b[i];
    const float4 sum{fmaf(0.5F, y.x, x.x), fmaf(0.5F, y.y, x.y), fmaf(0.5F, y.z, x.z),
                     fmaf(0.5F, y.w, x.w)};
    c[i] = sum;
  }
}

__global__ void update_all(float4* a, std::int64_t fours) {
  const std::int64_t stride = std::int64_t{gridDim.x} * blockDim.x;
#pragma unroll 4
  for (std::int64_t i = std::int64_t{blockIdx.x} * blockDim.x + threadIdx.x; i < fours;
       i += stride) {
    const float4 x = a[i];
    const float4 negated{-x.x, -x.y, -x.z, -x.w};
    a[i] = negated;
  }
}

// Operands in registers.
__global__ void multiply_add(int rounds, float* kept) {
  float sum[kSums];
#pragma unroll
  for (int k = 0; k < kSums; ++k) sum[k] = static_cast<float>(threadIdx.x + k);
  for (int i = 0; i < rounds; ++i) {
#pragma unroll
    for (int k = 0; k < kSums; ++k) sum[k] = fmaf(sum[k], 0.999F, 0.001F);
  }
  float total = 0.0F;
#pragma unroll
  for (int k = 0; k < kSums; ++k) total += sum[k];
  if (total == -1.0F) *kept = total;
}

class DeviceRoof {
 public:
  DeviceRoof() {
    for (const auto which : {&Roof::read_gb_per_s, &Roof::copy_gb_per_s, &Roof::triad_gb_per_s,
                             &Roof::update_gb_per_s, &Roof::gflop_per_s}) {
      for (int round = 0; round < 5; ++round) {
        roof_.*which = std::max(roof_.*which, once(which));
      }
    }
  }

  const Roof& result() const { return roof_; }

  double once(double Roof::*which) const {
    double amount = 4.0 * static_cast<double>(elems_);  // Bytes of an array.
    if (which == &Roof::copy_gb_per_s || which == &Roof::update_gb_per_s) amount *= 2;
    if (which == &Roof::triad_gb_per_s) amount *= 3;
    if (which == &Roof::gflop_per_s) amount = 2.0 * kSums * rounds_ * kThreads * blocks_;
    return amount / device_seconds([&](StreamRef stream) { enqueue(which, stream); }) / 1e9;
  }

 private:
  void enqueue(double Roof::*which, StreamRef stream) const {
    auto* const a = reinterpret_cast<float4*>(a_.data());
    auto* const b = reinterpret_cast<float4*>(b_.data());
    auto* const c = reinterpret_cast<float4*>(c_.data());
    const std::int64_t fours = elems_ / 4;
    const cuda::Shape shape{blocks_, kThreads};
    if (which == &Roof::read_gb_per_s) {
      cuda::launch("read_all", cuda::Kernel<read_all>(), shape, stream, a, fours, b_.data());
    } else if (which == &Roof::copy_gb_per_s) {
      cuda::launch("copy_all", cuda::Kernel<copy_all>(), shape, stream, a, b, fours);
    } else if (which == &Roof::triad_gb_per_s) {
      cuda::launch("triad_all", cuda::Kernel<triad_all>(), shape, stream, a, b, c, fours);
    } else if (which == &Roof::update_gb_per_s) {
      cuda::launch("update_all", cuda::Kernel<update_all>(), shape, stream, a, fours);
    } else {
      cuda::launch("multiply_add", cuda::Kernel<multiply_add>(), shape, stream, rounds_, b_.data());
    }
  }

  const std::int64_t elems_ = device_sizes().swept_elems;
  const unsigned blocks_ = device_sizes().blocks;
  const int rounds_ = device_sizes().rounds;
  test::DeviceArray<float> a_{std::vector<float>(static_cast<std::size_t>(elems_), 1.0F)};
  test::DeviceArray<float> b_{std::vector<float>(static_cast<std::size_t>(elems_), 1.0F)};
  test::DeviceArray<float> c_{std::vector<float>(static_cast<std::size_t>(elems_), 1.0F)};
  Roof roof_;
};

// Never destroyed: the driver may be gone when a program's static objects are.
const DeviceRoof& shared_roof() {
  static const auto* const roof = new DeviceRoof;
  return *roof;
}

}  // namespace

double device_roof_now(double Roof::*which) { return shared_roof().once(which); }

const Roof& device_roof() { return shared_roof().result(); }

}  // namespace sluiceway::bench
