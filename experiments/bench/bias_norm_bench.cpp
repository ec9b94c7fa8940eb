// bias_norm() by family, against the binding roof: two reads of G and the flop of both ways.
#include "experiments/bench/projector_bench.h"
#include "kernels/bias_norm.h"

namespace sluiceway::bench {
namespace {

template <typename F>
void run(benchmark::State& state, std::int64_t m, std::int64_t n, std::int64_t nnz, std::int64_t dn,
         const F& call) {
  const Array<float> g = random_array<float>(m * n, 1);
  const AnyMatrix view{g.get(), m, n, n, DType::kF32};
  const double s = best_seconds(state, [&] { benchmark::DoNotOptimize(call(view)); });
  const double elems = static_cast<double>(m * n);
  report(state, s, 2 * elems * sizeof(float), 4 * static_cast<double>(nnz * m * (n + dn)),
         &Roof::read_gb_per_s);
}

void bias_sparse(benchmark::State& state) {
  const std::int64_t m = state.range(0), n = state.range(1), share = state.range(2), r = 4;
  const SparseSide p(m, m / share, r), q(n, n / share, r);
  std::vector<float> scratch(static_cast<std::size_t>(bias_norm_scratch_elems(p.view(), q.view())));
  run(state, m, n, r, q.cols, [&](const AnyMatrix& g) {
    return cpu::bias_norm(g, p.view(), q.view(), q.columns(), scratch);
  });
}

void bias_blocks(benchmark::State& state) {
  const std::int64_t m = state.range(0), n = state.range(1), block = 32;
  const std::int64_t kept = block / state.range(2);
  const BlockSide p(m, block, kept), q(n, block, kept);
  std::vector<float> scratch(static_cast<std::size_t>(bias_norm_scratch_elems(p.view(), q.view())));
  run(state, m, n, kept, q.view().cols,
      [&](const AnyMatrix& g) { return cpu::bias_norm(g, p.view(), q.view(), scratch); });
}

void shapes(benchmark::internal::Benchmark* b) {
  b->ArgNames({"m", "n", "1/f"})->Unit(benchmark::kMicrosecond);
  for (const std::int64_t share : {4, 2}) b->Args({4096, 4096, share})->Args({704, 256, share});
}

BENCHMARK(bias_sparse)->Apply(shapes);
BENCHMARK(bias_blocks)->Apply(shapes);

}  // namespace
}  // namespace sluiceway::bench
