// The functions that cuda_runtime.h calls for a kernel's threads (simt_device.h).
#include <simt_device.h>

#include "tests/support/simt/grid.h"

namespace sluiceway::simt {
namespace {

// Streams that the program runs at the same time may update one word, so it is truly atomic.
template <typename Word>
Word update_word(Word* address, Next<Word> next, const void* operand, const void* from) {
  Grid& grid = *Grid::current();
  grid.access(address, sizeof(Word), Touch::kAtomic, true, from);
  Word old = __atomic_load_n(address, __ATOMIC_RELAXED);
  while (!__atomic_compare_exchange_n(address, &old, next(old, operand), false, __ATOMIC_SEQ_CST,
                                      __ATOMIC_RELAXED)) {
  }
  grid.after_atomic(address);
  return old;
}

}  // namespace

uint3 thread_index() noexcept { return Grid::current()->thread_index(); }
uint3 block_index() noexcept { return Grid::current()->block_index(); }
dim3 block_shape() noexcept { return Grid::current()->launch().block; }
dim3 grid_shape() noexcept { return Grid::current()->launch().grid; }
int lane() noexcept { return static_cast<int>(Grid::current()->lane()); }

void barrier(Site site) { Grid::current()->barrier(site); }
void warp_barrier(unsigned mask, Site site) {
  Grid::current()->meet_warp(Grid::Meeting::kWarpBarrier, mask, 0, 0, site);
}
void fence() { Grid::current()->fence(); }

std::uint32_t shuffle(unsigned mask, std::uint32_t value, int source_lane, Site site) {
  return Grid::current()->meet_warp(Grid::Meeting::kShuffle, mask, value,
                                    static_cast<unsigned>(source_lane), site);
}
unsigned ballot(unsigned mask, bool predicate, Site site) {
  return Grid::current()->meet_warp(Grid::Meeting::kVote, mask, predicate ? 1 : 0, 0, site);
}

std::uint32_t update(std::uint32_t* address, Next<std::uint32_t> next, const void* operand) {
  return update_word(address, next, operand, __builtin_return_address(0));
}
std::uint64_t update(std::uint64_t* address, Next<std::uint64_t> next, const void* operand) {
  return update_word(address, next, operand, __builtin_return_address(0));
}

std::byte* dynamic_shared_memory() noexcept { return Grid::current()->dynamic_shared_memory(); }

}  // namespace sluiceway::simt
