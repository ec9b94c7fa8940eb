// decompress() by family, element type and rounding, against the roof that binds and a sparse
// library.
#include "experiments/bench/projector_bench.h"
#include "kernels/decompress.h"

namespace sluiceway::bench {
namespace {

double flop_of(double m, double n, double dn, double nnz) { return 2 * nnz * m * (n + dn); }

// W and the buffers of one benchmark; the update shrinks towards zero, so nothing overflows.
template <typename T>
struct Weight {
  std::int64_t m, n;
  Array<T> w;
  Array<std::uint16_t> low;
  WeightUpdate update{.decay = 0.999F, .alpha = 1e-3F};

  Weight(std::int64_t rows, std::int64_t cols, Rounding rounding)
      : m(rows), n(cols), w(random_array<T>(rows * cols, 1)) {
    update.rounding = rounding;
    update.key = {.seed = 1, .step = 1};
    if (rounding == Rounding::kResidual) {
      low = hwy::AllocateAligned<std::uint16_t>(static_cast<std::size_t>(m * n));
      std::fill_n(low.get(), m * n, std::uint16_t{0});
    }
  }
  AnyMatrix view() { return {w.get(), m, n, n, dtype_of<T>}; }
  MatrixView<std::uint16_t> low_view() {
    return low ? MatrixView<std::uint16_t>(low.get(), m, n) : MatrixView<std::uint16_t>();
  }
  double bytes() const {  // Each is read and written once.
    return 2.0 * static_cast<double>(m * n) *
           static_cast<double>(sizeof(T) + (low ? sizeof(std::uint16_t) : 0));
  }
};

template <typename T, Rounding kRounding>
void decompress_sparse(benchmark::State& state) {
  const std::int64_t m = state.range(0), n = state.range(1), share = state.range(2), r = 4;
  const SparseSide p(m, m / share, r), q(n, n / share, r);
  Weight<T> weight(m, n, kRounding);
  const Array<float> d = random_array<float>(p.cols * q.cols, 3);
  const AnyMatrix core{d.get(), p.cols, q.cols, q.cols, DType::kF32};
  std::vector<float> scratch(
      static_cast<std::size_t>(decompress_scratch_elems(p.view(), q.view())));
  const double s = best_seconds(state, [&] {
    cpu::decompress(weight.view(), weight.low_view(), core, p.view(), q.view(), weight.update,
                    scratch);
  });
  report(state, s, weight.bytes(),
         flop_of(static_cast<double>(m), static_cast<double>(n), static_cast<double>(q.cols),
                 static_cast<double>(r)),
         &Roof::update_gb_per_s);
  if constexpr (std::is_same_v<T, float>) {
    state.counters["vs_sparse"] =
        sparse_library_decompress_s({weight.w.get(), m, n}, {d.get(), p.cols, q.cols}, p.view(),
                                    q.view()) /
        s;
  }
}

template <typename T, Rounding kRounding>
void decompress_blocks(benchmark::State& state) {
  const std::int64_t m = state.range(0), n = state.range(1), block = 32;
  const std::int64_t kept = block / state.range(2);
  const BlockSide p(m, block, kept), q(n, block, kept);
  const std::int64_t dm = p.view().cols, dn = q.view().cols;
  Weight<T> weight(m, n, kRounding);
  const Array<float> d = random_array<float>(dm * dn, 3);
  const AnyMatrix core{d.get(), dm, dn, dn, DType::kF32};
  std::vector<float> scratch(
      static_cast<std::size_t>(decompress_scratch_elems(p.view(), q.view())));
  const double s = best_seconds(state, [&] {
    cpu::decompress(weight.view(), weight.low_view(), core, p.view(), q.view(), weight.update,
                    scratch);
  });
  report(state, s, weight.bytes(),
         flop_of(static_cast<double>(m), static_cast<double>(n), static_cast<double>(dn),
                 static_cast<double>(kept)),
         &Roof::update_gb_per_s);
  if constexpr (std::is_same_v<T, float>) {
    const SparseSide sp = as_sparse(p), sq = as_sparse(q);
    state.counters["vs_sparse"] =
        sparse_library_decompress_s({weight.w.get(), m, n}, {d.get(), dm, dn}, sp.view(),
                                    sq.view()) /
        s;
  }
}

// {rows, columns, 1/f}
void shapes(benchmark::internal::Benchmark* b) {
  b->ArgNames({"m", "n", "1/f"})->Unit(benchmark::kMicrosecond);
  for (const std::int64_t share : {4, 2}) {
    b->Args({4096, 4096, share})->Args({256, 256, share})->Args({704, 256, share});
  }
}

BENCHMARK(decompress_sparse<float, Rounding::kNearest>)->Apply(shapes);
BENCHMARK(decompress_sparse<bf16, Rounding::kStochastic>)->Apply(shapes);
BENCHMARK(decompress_blocks<float, Rounding::kNearest>)->Apply(shapes);
BENCHMARK(decompress_blocks<bf16, Rounding::kNearest>)->Apply(shapes);
BENCHMARK(decompress_blocks<bf16, Rounding::kStochastic>)->Apply(shapes);
BENCHMARK(decompress_blocks<bf16, Rounding::kResidual>)->Apply(shapes);

}  // namespace
}  // namespace sluiceway::bench
