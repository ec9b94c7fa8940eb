// Parts that the benchmarks of kernels on CUDA device 0 share: memory, the loop, the counters.
//
//   gb_per_s    bytes that the header's Cost line counts, per second, in units of 1e9
//   gflop_per_s flop of the Cost line per second, in units of 1e9
//   roof_ratio  the least time that bytes and flop allow / the time taken, median; each call comes
//               with one more pass of the roof of bytes
//   bytes_bind  1 if bytes allow less than flop
//   us          the median time
#pragma once

#include <benchmark/benchmark.h>

#include <cstdint>
#include <string>
#include <vector>

#include "experiments/bench/against_roof.h"
#include "experiments/bench/device/device_clock.h"
#include "experiments/bench/device/device_roof.h"
#include "experiments/bench/projector_bench.h"
#include "kernels/cuda/sparse_product.h"
#include "tests/support/device_array.h"

namespace sluiceway::bench {

using test::DeviceArray;

inline std::size_t count(std::int64_t elems) { return static_cast<std::size_t>(elems); }

template <typename T>
DeviceArray<T> random_there(std::int64_t elems, std::uint32_t seed) {
  const std::vector<float> values = random_values(elems, seed);
  std::vector<T> out(values.size());
  std::transform(values.begin(), values.end(), out.begin(), from_float<T>);
  return DeviceArray<T>(out);
}

template <typename T>
std::span<T> span_of(const DeviceArray<T>& x) {
  return {x.data(), x.size_bytes() / sizeof(T)};
}

template <typename T>
AnyMatrix any_of(const DeviceArray<T>& x, std::int64_t rows, std::int64_t cols) {
  return {x.data(), rows, cols, cols, dtype_of<T>};
}

template <typename T>
MatrixView<T> matrix_of(const DeviceArray<T>& x, std::int64_t rows, std::int64_t cols) {
  return {x.data(), rows, cols, cols};
}

// Runs the loop, sets the counters and returns the median seconds; 0 after no iteration.
inline double run_on_device(benchmark::State& state, double bytes, double flop, double Roof::*which,
                            const DeviceWork& work) {
  run_on_device_0(work);  // Loads the code.
  const Roof& top = device_roof();
  std::vector<double> times, ratios;
  for ([[maybe_unused]] const auto _ : state) {
    Roof beside = top;
    beside.*which = device_roof_now(which);
    times.push_back(device_seconds(work));
    ratios.push_back(beside.bound_s(bytes, beside.*which, flop) / times.back());
    state.SetIterationTime(times.back());
  }
  const double s = median(times);
  state.counters["us"] = s * 1e6;
  state.counters["gb_per_s"] = bytes / s * 1e-9;
  if (flop > 0) state.counters["gflop_per_s"] = flop / s * 1e-9;
  state.counters["roof_ratio"] = median(ratios);
  state.counters["bytes_bind"] = bytes / (1e9 * top.*which) >= flop / (1e9 * top.gflop_per_s);
  return s;
}

// Registers `run` under `name`; times are the device's.
template <typename F>
void add_row(const std::string& name, const F& run) {
  benchmark::RegisterBenchmark(name.c_str(), run)
      ->Iterations(device_sizes().calls)
      ->UseManualTime()
      ->Unit(benchmark::kMicrosecond);
}

void add_project_rows();  // compress, decompress, project_rows, residual_form, beside libraries.
void add_libraries();     // The same products by cuSPARSE and cuBLAS.
void add_passes();        // Everything else.

}  // namespace sluiceway::bench
