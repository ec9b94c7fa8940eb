// compress() by family, element type and shape, against the roof that binds and a sparse library.
#include "experiments/bench/projector_bench.h"
#include "kernels/compress.h"

namespace sluiceway::bench {
namespace {

// Cost of the header: g read once (s stays in the cache), r or k nonzeros a row on both sides.
double bytes_of(double m, double n, std::size_t elem) { return m * n * static_cast<double>(elem); }
double flop_of(double m, double n, double dn, double nnz) { return 2 * nnz * m * (n + dn); }

template <typename T, typename F>
void run(benchmark::State& state, std::int64_t m, std::int64_t n, double nnz, double dn,
         const F& call) {
  const Array<T> g = random_array<T>(m * n, 1);
  const AnyMatrix view{g.get(), m, n, n, dtype_of<T>};
  call(view);
  const double s = best_seconds(state, [&] { call(view); });
  const double rows = static_cast<double>(m), cols = static_cast<double>(n);
  report(state, s, bytes_of(rows, cols, sizeof(T)), flop_of(rows, cols, dn, nnz),
         &Roof::read_gb_per_s);
}

template <typename T>
void compress_sparse(benchmark::State& state) {
  const std::int64_t m = state.range(0), n = state.range(1), share = state.range(2), r = 4;
  const SparseSide p(m, m / share, r), q(n, n / share, r);
  const Array<float> s = random_array<float>(p.cols * q.cols, 2);
  std::vector<float> scratch(
      static_cast<std::size_t>(compress_scratch_elems(p.view(), q.columns())));
  const MatrixView<float> core(s.get(), p.cols, q.cols);
  run<T>(state, m, n, static_cast<double>(r), static_cast<double>(q.cols),
         [&](const AnyMatrix& g) { cpu::compress(core, 0.0F, g, p.view(), q.columns(), scratch); });
  if constexpr (std::is_same_v<T, float>) {
    const Array<float> g = random_array<float>(m * n, 1);
    const double library = sparse_library_compress_s({g.get(), m, n}, p.view(), q.view());
    const double ours = flop_of(static_cast<double>(m), static_cast<double>(n),
                                static_cast<double>(q.cols), static_cast<double>(r)) /
                        (state.counters["gflop_per_s"] * 1e9);
    state.counters["vs_sparse"] = library / ours;
  }
}

template <typename T>
void compress_blocks(benchmark::State& state) {
  const std::int64_t m = state.range(0), n = state.range(1), block = 32;
  const std::int64_t kept = block / state.range(2);
  const BlockSide p(m, block, kept), q(n, block, kept);
  const std::int64_t dm = p.view().cols, dn = q.view().cols;
  const Array<float> s = random_array<float>(dm * dn, 2);
  std::vector<float> scratch(static_cast<std::size_t>(compress_scratch_elems(p.view(), q.view())));
  const MatrixView<float> core(s.get(), dm, dn);
  run<T>(state, m, n, static_cast<double>(kept), static_cast<double>(dn),
         [&](const AnyMatrix& g) { cpu::compress(core, 0.0F, g, p.view(), q.view(), scratch); });
  if constexpr (std::is_same_v<T, float>) {
    const SparseSide sp = as_sparse(p), sq = as_sparse(q);
    const Array<float> g = random_array<float>(m * n, 1);
    const double library = sparse_library_compress_s({g.get(), m, n}, sp.view(), sq.view());
    const double ours = flop_of(static_cast<double>(m), static_cast<double>(n),
                                static_cast<double>(dn), static_cast<double>(kept)) /
                        (state.counters["gflop_per_s"] * 1e9);
    state.counters["vs_sparse"] = library / ours;
  }
}

// {rows, columns, 1/f}
void shapes(benchmark::internal::Benchmark* b) {
  b->ArgNames({"m", "n", "1/f"})->Unit(benchmark::kMicrosecond);
  for (const std::int64_t share : {4, 2}) {
    b->Args({4096, 4096, share})->Args({256, 256, share})->Args({704, 256, share});
  }
}

BENCHMARK(compress_sparse<float>)->Apply(shapes);
BENCHMARK(compress_sparse<bf16>)->Apply(shapes);
BENCHMARK(compress_blocks<float>)->Apply(shapes);
BENCHMARK(compress_blocks<bf16>)->Apply(shapes);
BENCHMARK(compress_blocks<f16>)->Args({4096, 4096, 4})->ArgNames({"m", "n", "1/f"});

}  // namespace
}  // namespace sluiceway::bench
