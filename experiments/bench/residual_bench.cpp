// The residual kernels, each against the roof that its reads and writes of R and W bind.
//
// residual_step covers a whole step: G - P S Q^T in place with its means (G read and written), RMS
// (a read), update (a read of R, W read and written). It counts each of these.
#include "experiments/bench/against_roof.h"
#include "experiments/bench/projector_bench.h"
#include "kernels/decompress.h"
#include "kernels/factored_moment.h"
#include "kernels/residual.h"
#include "kernels/residual_form.h"

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

// 2 (m + n) floats read twice and as many written. Sums go in order, so the latency of an add in
// double binds, not memory.
void use_means(benchmark::State& state) {
  Case c(state);
  std::vector<float> row(c.row), col(c.col);
  ResidualVerdict verdict;
  const MeansPass pass{.means = {c.row, c.col},
                       .verdict = &verdict,
                       .share = 1e-3,
                       .lr = 1e-6,
                       .from = {row, col},
                       .to = {row, col},
                       .step = {.beta2 = 0.999, .eps = 1e-8}};
  run_against_roof(state, 24.0 * static_cast<double>(c.m + c.n), &Roof::triad_gb_per_s,
                   [&] { cpu::use_means(pass); });
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

// A gradient, a core and block projectors with f = 1/4.
struct Formed : Case {
  BlockSide p, q;
  Array<float> s;
  std::vector<float> scratch, row_means, col_means;

  explicit Formed(const benchmark::State& state)
      : Case(state),
        p(m, 32, 8),
        q(n, 32, 8),
        s(random_array<float>(p.view().cols * q.view().cols, 3)),
        scratch(static_cast<std::size_t>(decompress_scratch_elems(p.view(), q.view()))),
        row_means(row.size()),
        col_means(col.size()) {}
  void form() {
    const MatrixView<float> core(s.get(), p.view().cols, q.view().cols);
    cpu::residual_form(residual(), core, p.view(), q.view(), row_means, col_means, scratch);
  }
};

void form(benchmark::State& state) {
  Formed c(state);
  run_against_roof(state, 2 * c.bytes(), &Roof::update_gb_per_s, [&] { c.form(); });
}

void residual_step(benchmark::State& state) {
  Formed c(state);
  run_against_roof(state, 6 * c.bytes(), &Roof::update_gb_per_s, [&] {
    c.form();
    benchmark::DoNotOptimize(cpu::residual_rms(c.residual(), c.roots()));
    cpu::residual_apply(c.weight(), {}, c.residual(), c.roots(), kUpdate);
  });
}

constexpr int kFew = 100;  // Iterations of calls so short that the roof takes most time.

void shapes(benchmark::internal::Benchmark* b) {
  b->ArgNames({"m", "n"})->Unit(benchmark::kMicrosecond)->UseManualTime();
  b->Args({4096, 4096})->Args({4096, 11008});
}

BENCHMARK(moments)->Apply(shapes);
BENCHMARK(rms)->Apply(shapes);
BENCHMARK(use_means)->Apply(shapes)->Iterations(kFew);
BENCHMARK(apply)->Apply(shapes);
BENCHMARK(sign)->Apply(shapes);
BENCHMARK(form)->Apply(shapes);
BENCHMARK(residual_step)->Apply(shapes);

}  // namespace
}  // namespace sluiceway::bench
