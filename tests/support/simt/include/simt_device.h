// What kernels ask of the machine that runs them; cuda_runtime.h gives it CUDA's names.
//
// Thread safety: called by kernels only, but for enqueue_kernel().
#pragma once

#include <cuda_runtime_api.h>

#include <cstddef>
#include <cstdint>
#include <memory>

namespace sluiceway::simt {

struct Site {  // Where a source calls; threads that meet must call at the same one.
  const char* file = "";
  int line = 0;
};

// Every __shared__ variable starts at such an offset of thread-local storage, and nothing but those
// does, so that what follows a variable up to the next is nobody's.
inline constexpr std::size_t kSharedAlignment = 8192;

uint3 thread_index() noexcept;
uint3 block_index() noexcept;
dim3 block_shape() noexcept;
dim3 grid_shape() noexcept;
int lane() noexcept;

void barrier(Site site);
void warp_barrier(unsigned mask, Site site);
void fence();

// The value of `source_lane`, which must be among `mask`.
std::uint32_t shuffle(unsigned mask, std::uint32_t value, int source_lane, Site site);
unsigned ballot(unsigned mask, bool predicate, Site site);

// Stores next(old, operand) as one atomic step, and returns old.
template <typename Word>
using Next = Word (*)(Word old, const void* operand);
std::uint32_t update(std::uint32_t* address, Next<std::uint32_t> next, const void* operand);
std::uint64_t update(std::uint64_t* address, Next<std::uint64_t> next, const void* operand);

std::byte* dynamic_shared_memory() noexcept;

struct Kernel {
  const void* address;               // Of the __global__ function: says its name.
  void (*call)(const void* params);  // One thread of it.
  std::shared_ptr<const void> params;
  std::size_t params_bytes;
};
cudaError_t enqueue_kernel(const cudaLaunchConfig_t& config, Kernel kernel);

}  // namespace sluiceway::simt
