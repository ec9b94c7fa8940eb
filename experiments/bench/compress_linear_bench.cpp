// project_rows() by family, element type and shape, against the roof that binds.
#include "experiments/bench/projector_bench.h"
#include "kernels/compress_linear.h"

namespace sluiceway::bench {
namespace {

// Cost of the header: g read and w written once, `nnz` nonzeros a row of p.
template <typename T, typename Side>
void run(benchmark::State& state, const Side& p, double nnz) {
  const std::int64_t rows = state.range(0), cols = p.view().cols;
  const Array<T> g = random_array<T>(rows * p.rows, 1), w = random_array<T>(rows * cols, 2);
  const AnyMatrix from{g.get(), rows, p.rows, p.rows, dtype_of<T>};
  const AnyMatrix to{w.get(), rows, cols, cols, dtype_of<T>};
  std::vector<float> scratch(static_cast<std::size_t>(project_scratch_elems(p.view())));
  const auto call = [&] { cpu::project_rows(to, from, p.view(), scratch); };
  call();
  const double seconds = best_seconds(state, call);
  const auto elems = static_cast<double>(rows);
  report(state, seconds, elems * static_cast<double>((p.rows + cols)) * sizeof(T),
         2 * nnz * elems * static_cast<double>(p.rows), &Roof::read_gb_per_s);
}

template <typename T>
void project_sparse(benchmark::State& state) {
  const std::int64_t r = 4;
  run<T>(state, SparseSide(state.range(1), state.range(1) / state.range(2), r),
         static_cast<double>(r));
}

template <typename T>
void project_blocks(benchmark::State& state) {
  const std::int64_t block = 32, kept = block / state.range(2);
  run<T>(state, BlockSide(state.range(1), block, kept), static_cast<double>(kept));
}

// {rows of g, rows of p, 1/f}
void shapes(benchmark::internal::Benchmark* b) {
  b->ArgNames({"T", "m", "1/f"})->Unit(benchmark::kMicrosecond);
  for (const std::int64_t share : {4, 2}) b->Args({1024, 4096, share})->Args({1024, 256, share});
}

BENCHMARK(project_sparse<float>)->Apply(shapes);
BENCHMARK(project_sparse<bf16>)->Apply(shapes);
BENCHMARK(project_blocks<float>)->Apply(shapes);
BENCHMARK(project_blocks<bf16>)->Apply(shapes);

}  // namespace
}  // namespace sluiceway::bench
