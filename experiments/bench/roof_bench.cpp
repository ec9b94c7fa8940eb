// Prints the roofs that the other benchmarks are compared with.
#include "experiments/bench/against_roof.h"

namespace sluiceway::bench {
namespace {

void roof(benchmark::State& state, double Roof::*which, const char* counter) {
  std::vector<double> rates;
  for ([[maybe_unused]] const auto _ : state) rates.push_back(roof_now(which));
  state.counters[counter] = median(rates);
}

BENCHMARK_CAPTURE(roof, read, &Roof::read_gb_per_s, "gb_per_s");
BENCHMARK_CAPTURE(roof, copy, &Roof::copy_gb_per_s, "gb_per_s");
BENCHMARK_CAPTURE(roof, triad, &Roof::triad_gb_per_s, "gb_per_s");
BENCHMARK_CAPTURE(roof, adam, &Roof::adam_gb_per_s, "gb_per_s");
BENCHMARK_CAPTURE(roof, update, &Roof::update_gb_per_s, "gb_per_s");
BENCHMARK_CAPTURE(roof, multiply_add, &Roof::gflop_per_s, "gflop_per_s");

}  // namespace
}  // namespace sluiceway::bench
