// Runs a memory-bound kernel and its roof in turn, and reports the ratio of the two.
//
//   void scan(benchmark::State& state) {
//     run_against_roof(state, 4.0 * n, &Roof::read_gb_per_s, [&] { cpu::overflow_scan(x); });
//   }
//   BENCHMARK(scan)->UseManualTime();
//
// Each call follows one more pass of the roof, so that both see the same neighbours on a shared
// machine. Times are the thread's processor time. Counters, medians over the iterations:
//
//   gb_per_s    bytes per second, in units of 1e9
//   roof_ratio  that rate / the rate of the roof beside it
#pragma once

#include <benchmark/benchmark.h>

#include <algorithm>
#include <cstddef>
#include <vector>

#include "experiments/bench/roof.h"

namespace sluiceway::bench {

inline double median(std::vector<double> x) {
  if (x.empty()) return 0.0;
  const auto middle = x.begin() + static_cast<std::ptrdiff_t>(x.size() / 2);
  std::nth_element(x.begin(), middle, x.end());
  return *middle;
}

template <typename Call>
double seconds_of(const Call& call) {
  const double start = thread_seconds();
  call();
  benchmark::ClobberMemory();
  return thread_seconds() - start;
}

template <typename Kernel>
void run_against_roof(benchmark::State& state, double bytes, double Roof::*which,
                      const Kernel& kernel) {
  kernel();  // Touches every page.
  std::vector<double> rates, ratios;
  for (auto _ : state) {
    const double roof_rate = roof_now(which);
    const double seconds = seconds_of(kernel);
    rates.push_back(bytes / seconds * 1e-9);
    ratios.push_back(rates.back() / roof_rate);
    state.SetIterationTime(seconds);
  }
  state.counters["gb_per_s"] = median(rates);
  state.counters["roof_ratio"] = median(ratios);
}

}  // namespace sluiceway::bench
