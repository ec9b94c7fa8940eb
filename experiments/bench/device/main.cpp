// Every kernel on CUDA device 0.
//
//   bench_device [--tiny] [Google Benchmark's options]
//
// --tiny computes with sizes that show only that the code runs. Exits with 2 if there is no device.
#include <algorithm>
#include <iostream>
#include <string_view>
#include <vector>

#include "experiments/bench/device/device_bench.h"
#include "experiments/bench/device/first_use.h"
#include "kernels/base/error.h"

namespace sluiceway::bench {
namespace {

void add_first_use(const FirstUse& of) {
  const auto row = [of](benchmark::State& state) {
    for ([[maybe_unused]] const auto _ : state) state.SetIterationTime(of.seconds);
    state.counters["us"] = of.seconds * 1e6;
    state.counters["device_mib"] = of.bytes / (1 << 20);
    state.counters["kernels"] = static_cast<double>(of.kernels);
  };
  benchmark::RegisterBenchmark(("first_use/" + of.name).c_str(), row)
      ->Iterations(1)
      ->UseManualTime()
      ->Unit(benchmark::kMicrosecond);
}

}  // namespace
}  // namespace sluiceway::bench

int main(int argc, char** argv) {
  using namespace sluiceway;
  char** const end = argv + argc;
  char** const rest = std::remove(argv, end, std::string_view("--tiny"));
  if (rest != end) bench::choose_tiny_sizes();
  argc = static_cast<int>(rest - argv);
  benchmark::Initialize(&argc, argv);
  if (benchmark::ReportUnrecognizedArguments(argc, argv)) return 1;
  std::vector<bench::FirstUse> first_use;
  try {
    first_use = bench::measure_first_use();
  } catch (const Error& error) {
    std::cerr << error.what() << '\n';
    return 2;
  }
  for (const bench::FirstUse& of : first_use) bench::add_first_use(of);
  bench::add_passes();
  bench::add_project_rows();
  bench::add_libraries();
  benchmark::RunSpecifiedBenchmarks();
  benchmark::Shutdown();
  return 0;
}
