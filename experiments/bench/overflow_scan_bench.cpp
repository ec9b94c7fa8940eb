// overflow_scan() against the read roof, and its copy against the copy roof. Arrays of 128 MiB.
#include "experiments/bench/against_roof.h"
#include "experiments/bench/staggered_array.h"
#include "kernels/overflow_scan.h"

namespace sluiceway::bench {
namespace {

constexpr std::size_t kBytes = std::size_t{128} << 20;

template <typename T>
void scan(benchmark::State& state) {
  const StaggeredArray<T> x(kBytes / sizeof(T), from_float<T>(0.01F));
  run_against_roof(state, static_cast<double>(kBytes), &Roof::read_gb_per_s,
                   [&] { benchmark::DoNotOptimize(cpu::overflow_scan(x.view())); });
}

template <typename Dst>
void scan_copy(benchmark::State& state) {
  const StaggeredArray<float> x(kBytes / sizeof(float), 0.01F);
  StaggeredArray<Dst> y(x.size(), Dst{});
  const double bytes = static_cast<double>(x.size() * (sizeof(float) + sizeof(Dst)));
  run_against_roof(state, bytes, &Roof::copy_gb_per_s,
                   [&] { benchmark::DoNotOptimize(cpu::overflow_scan_copy(x.view(), y.span())); });
}

BENCHMARK(scan<float>)->UseManualTime();
BENCHMARK(scan<f16>)->UseManualTime();
BENCHMARK(scan<bf16>)->UseManualTime();
BENCHMARK(scan_copy<float>)->UseManualTime();
BENCHMARK(scan_copy<f16>)->UseManualTime();
BENCHMARK(scan_copy<bf16>)->UseManualTime();

}  // namespace
}  // namespace sluiceway::bench
