// gradient_copy() chunk by chunk against the copy roof, and against the same pass without the scan.
//
//   scan_cost   seconds with the scan / seconds without, minus 1: the median of pairs
#include "experiments/bench/against_roof.h"
#include "experiments/bench/staggered_array.h"
#include "experiments/bench/unscanned.h"
#include "kernels/gradient_copy.h"

namespace sluiceway::bench {
namespace {

constexpr std::size_t kChunk = std::size_t{1} << 20;  // Elements, as in the store.
constexpr std::size_t kChunks = 32;

template <typename Src, typename Dst>
void gradient_copy(benchmark::State& state) {
  const StaggeredArray<Src> x(kChunk * kChunks, from_float<Src>(0.01F));
  StaggeredArray<Dst> y(x.size(), Dst{});
  const auto each_chunk = [&](const auto& copy) {
    for (std::size_t at = 0; at < x.size(); at += kChunk) {
      copy(x.view().subspan(at, kChunk), y.span().subspan(at, kChunk));
    }
  };
  const auto scanned = [&] {
    each_chunk([](auto from, auto to) { benchmark::DoNotOptimize(cpu::gradient_copy(from, to)); });
  };
  const auto unscanned = [&] {
    each_chunk([](std::span<const Src> from, std::span<Dst> to) { unscanned_copy(from, to); });
  };
  unscanned();
  std::vector<double> costs;
  run_against_roof(state, static_cast<double>(x.size() * (sizeof(Src) + sizeof(Dst))),
                   &Roof::copy_gb_per_s, [&] { scanned(); });
  for (int pair = 0; pair < 15; ++pair) {
    const double without = seconds_of(unscanned);
    costs.push_back(seconds_of(scanned) / without - 1);
  }
  state.counters["scan_cost"] = median(costs);
}

BENCHMARK(gradient_copy<f16, f16>)->UseManualTime();
BENCHMARK(gradient_copy<bf16, bf16>)->UseManualTime();
BENCHMARK(gradient_copy<float, f16>)->UseManualTime();
BENCHMARK(gradient_copy<float, bf16>)->UseManualTime();
BENCHMARK(gradient_copy<float, float>)->UseManualTime();

}  // namespace
}  // namespace sluiceway::bench
