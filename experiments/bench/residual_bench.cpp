// The residual kernels, each against the roof that its reads and writes of R and W bind.
//
// residual_step is the whole of what a step does: G - P S Q^T in place (G read and written),
// moments (a read), RMS (a read), update (a read of R, W read and written), every one of them
// counted.
#include "experiments/bench/against_roof.h"
#include "experiments/bench/projector_bench.h"
#include "kernels/decompress.h"
#include "kernels/residual.h"

namespace sluiceway::bench {
namespace {

struct Case {
  std::int64_t m, n;
  Array<float> w, r;
  std::vector<float> row, col;

  explicit Case(const benchmark::State& state)
      : m(state.range(0)),
        n(state.range(1)),
        w(random_array<float>(m * n, 1)),
        r(random_array<float>(m * n, 2)),
        row(static_cast<std::size_t>(m), 1.0F),
        col(static_cast<std::size_t>(n), 1.0F) {}
  AnyMatrix weight() { return {w.get(), m, n, n, DType::kF32}; }
  AnyMatrix residual() { return {r.get(), m, n, n, DType::kF32}; }
  FactoredRoots roots() const { return {row, col, 1e-8F}; }
  double bytes() const { return static_cast<double>(m * n) * sizeof(float); }
};

const WeightUpdate kUpdate{.decay = 1.0F, .alpha = 1e-6F};

void moments(benchmark::State& state) {
  Case c(state);
  run_against_roof(state, c.bytes(), &Roof::read_gb_per_s,
                   [&] { cpu::mean_squares(c.residual(), c.row, c.col); });
}

void rms(benchmark::State& state) {
  Case c(state);
  run_against_roof(state, c.bytes(), &Roof::read_gb_per_s,
                   [&] { benchmark::DoNotOptimize(cpu::residual_rms(c.residual(), c.roots())); });
}

void apply(benchmark::State& state) {
  Case c(state);
  run_against_roof(state, 3 * c.bytes(), &Roof::triad_gb_per_s,
                   [&] { cpu::residual_apply(c.weight(), {}, c.residual(), c.roots(), kUpdate); });
}

void sign(benchmark::State& state) {
  Case c(state);
  run_against_roof(state, 3 * c.bytes(), &Roof::triad_gb_per_s,
                   [&] { cpu::residual_sign(c.weight(), {}, c.residual(), kUpdate); });
}

void residual_step(benchmark::State& state) {
  Case c(state);
  const std::int64_t block = 32, kept = 8;
  const BlockSide p(c.m, block, kept), q(c.n, block, kept);
  const std::int64_t dm = p.view().cols, dn = q.view().cols;
  const Array<float> s = random_array<float>(dm * dn, 3);
  const AnyMatrix core{s.get(), dm, dn, dn, DType::kF32};
  std::vector<float> scratch(
      static_cast<std::size_t>(decompress_scratch_elems(p.view(), q.view())));
  std::vector<float> row(c.row.size()), col(c.col.size());
  run_against_roof(state, 7 * c.bytes(), &Roof::update_gb_per_s, [&] {
    cpu::decompress(c.residual(), {}, core, p.view(), q.view(), {.alpha = -1e-6F}, scratch);
    cpu::mean_squares(c.residual(), row, col);
    benchmark::DoNotOptimize(cpu::residual_rms(c.residual(), c.roots()));
    cpu::residual_apply(c.weight(), {}, c.residual(), c.roots(), kUpdate);
  });
}

void shapes(benchmark::internal::Benchmark* b) {
  b->ArgNames({"m", "n"})->Unit(benchmark::kMicrosecond)->UseManualTime();
  b->Args({4096, 4096})->Args({4096, 11008});
}

BENCHMARK(moments)->Apply(shapes);
BENCHMARK(rms)->Apply(shapes);
BENCHMARK(apply)->Apply(shapes);
BENCHMARK(sign)->Apply(shapes);
BENCHMARK(residual_step)->Apply(shapes);

}  // namespace
}  // namespace sluiceway::bench
