// fill_bits() into a buffer that stays in the cache: how fast noise can be drawn beside a weight.
// Memory does not bind it; roof_ratio compares with writing 2 bytes at the copy roof.
#include "experiments/bench/against_roof.h"
#include "kernels/philox.h"

namespace sluiceway::bench {
namespace {

void fill_bits(benchmark::State& state) {
  std::vector<std::uint16_t> bits(4096);
  constexpr std::uint64_t kDraws = std::uint64_t{16} << 20;
  run_against_roof(state, 2.0 * kDraws, &Roof::copy_gb_per_s, [&] {
    for (std::uint64_t first = 0; first < kDraws; first += bits.size()) {
      cpu::fill_bits(NoiseKey{1, 2, 3, 4}, first, std::span<std::uint16_t>(bits));
    }
  });
}

BENCHMARK(fill_bits)->UseManualTime();

}  // namespace
}  // namespace sluiceway::bench
