// The functions that kernels call on their machine; cuda_runtime.h gives them CUDA's names.
//
// Thread safety: only kernels call these, except enqueue_kernel().
#pragma once

#include <cuda_runtime_api.h>

#include <cstddef>
#include <cstdint>
#include <memory>

namespace sluiceway::simt {

struct Site {  // A call in a source; threads that meet must call at the same one.
  const char* file = "";
  int line = 0;
};

// Every __shared__ variable starts at such an offset of thread-local storage, and nothing else
// does, so bytes between the end of one variable and the next belong to nobody.
inline constexpr std::size_t kSharedAlignment = 8192;

uint3 thread_index() noexcept;
uint3 block_index() noexcept;
dim3 block_shape() noexcept;
dim3 grid_shape() noexcept;
int lane() noexcept;

void barrier(Site site);
void warp_barrier(unsigned mask, Site site);
void fence();

// Returns the value of `source_lane`, which must be in `mask`.
std::uint32_t shuffle(unsigned mask, std::uint32_t value, int source_lane, Site site);
unsigned ballot(unsigned mask, bool predicate, Site site);

// Stores next(old, operand) as one atomic step, and returns old.
template <typename Word>
using Next = Word (*)(Word old, const void* operand);
std::uint32_t update(std::uint32_t* address, Next<std::uint32_t> next, const void* operand);
std::uint64_t update(std::uint64_t* address, Next<std::uint64_t> next, const void* operand);

std::byte* dynamic_shared_memory() noexcept;

struct Kernel {
  const void* address;               // The __global__ function; gives its name.
  void (*call)(const void* params);  // Runs one thread of it.
  std::shared_ptr<const void> params;
  std::size_t params_bytes;
};
cudaError_t enqueue_kernel(const cudaLaunchConfig_t& config, Kernel kernel);

}  // namespace sluiceway::simt
