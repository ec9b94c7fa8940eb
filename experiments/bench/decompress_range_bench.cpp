// decompress_range() of a weight, chunk by chunk into bf16, against the roof that binds, and
// against the same pass without the scan.
//
//   scan_cost   seconds with the scan / seconds without, minus 1: the median of pairs
//   ns_an_elem  nanoseconds an element of the written gradient
#include "experiments/bench/against_roof.h"
#include "experiments/bench/projector_bench.h"
#include "experiments/bench/unscanned.h"
#include "kernels/decompress_range.h"

namespace sluiceway::bench {
namespace {

constexpr std::int64_t kChunk = std::int64_t{1} << 20;  // Elements, as in the store.

// A weight of whole chunks, each of which is whole rows and whole groups of 32.
template <class Side>
struct Ranges {
  const Side& p;
  const Side& q;
  Array<float> d = random_array<float>(p.view().cols * q.view().cols, 3);
  std::int64_t elems = p.view().rows * q.view().rows;
  Array<bf16> dst = random_array<bf16>(elems, 4);
  std::vector<float> scratch = std::vector<float>(
      static_cast<std::size_t>(decompress_range_scratch_elems(p.view(), q.view())));

  AnyMatrix core() const {
    return {d.get(), p.view().cols, q.view().cols, q.view().cols, DType::kF32};
  }
  void scanned() {
    for (std::int64_t at = 0; at < elems; at += kChunk) {
      const std::span<bf16> to(dst.get() + at,
                               static_cast<std::size_t>(std::min(kChunk, elems - at)));
      benchmark::DoNotOptimize(cpu::decompress_range(
          core(), p.view(), q.view(), at, std::as_writable_bytes(to), DType::kBF16, scratch));
    }
  }
  void unscanned() {
    const std::int64_t n = q.view().rows;
    for (std::int64_t at = 0; at < elems; at += kChunk) {
      unscanned_rows(core(), p.view(), q.view(), at / n, std::min(at + kChunk, elems) / n,
                     dst.get() + at, scratch);
    }
  }
};

template <class Side>
void measure(benchmark::State& state, const Side& p, const Side& q, double flop) {
  Ranges<Side> ranges{p, q};
  const double s = best_seconds(state, [&] { ranges.scanned(); });
  report(state, s, static_cast<double>(ranges.elems) * sizeof(bf16), flop, &Roof::copy_gb_per_s);
  state.counters["ns_an_elem"] = 1e9 * s / static_cast<double>(ranges.elems);
}

template <class Side>
void measure_scan(benchmark::State& state, const Side& p, const Side& q) {
  Ranges<Side> ranges{p, q};
  std::vector<double> costs;
  for (int pair = 0; pair < 15; ++pair) {
    const double without = seconds_of([&] { ranges.unscanned(); });
    costs.push_back(seconds_of([&] { ranges.scanned(); }) / without - 1);
  }
  state.counters["scan_cost"] = median(costs);
}

void range_of_blocks(benchmark::State& state) {
  const std::int64_t n = state.range(0), kept = 32 / state.range(1);
  const BlockSide p(n, 32, kept), q(n, 32, kept);
  const auto m = static_cast<double>(n), k = static_cast<double>(kept);
  measure(state, p, q, 2 * k * m * (m + m * k / 32));
  measure_scan(state, p, q);
}

void range_of_sparse(benchmark::State& state) {
  const std::int64_t n = state.range(0), d = n / state.range(1);
  const SparseSide p(n, d, 4), q(n, d, 4);
  const auto m = static_cast<double>(n);
  measure(state, p, q, 2 * 4 * m * (m + static_cast<double>(d)));
  measure_scan(state, p, q);
}

void range_of_dense(benchmark::State& state) {
  const std::int64_t n = state.range(0), d = n / state.range(1);
  const BlockSide p(n, n, d), q(n, n, d);
  const auto m = static_cast<double>(n), k = static_cast<double>(d);
  measure(state, p, q, 2 * m * k * (k + m));
}

void shapes(benchmark::internal::Benchmark* b) {
  b->ArgNames({"n", "1/f"})->Unit(benchmark::kMicrosecond);
  for (const std::int64_t share : {4, 2}) b->Args({4096, share})->Args({1024, share});
}

BENCHMARK(range_of_blocks)->Apply(shapes);
BENCHMARK(range_of_sparse)->Apply(shapes);
BENCHMARK(range_of_dense)->Apply(shapes);

}  // namespace
}  // namespace sluiceway::bench
