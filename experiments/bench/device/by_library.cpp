// Products by general libraries, f32: `vs_library` is our speed over theirs. Each row first checks
// that both results agree, and fails if they do not.
#include <algorithm>
#include <cmath>

#include "experiments/bench/device/projector_there.h"
#include "kernels/compress.h"
#include "kernels/compress_linear.h"
#include "kernels/cuda/dense.h"
#include "kernels/decompress.h"

namespace sluiceway::bench {
namespace {

using cuda::Factor;
using cuda::SparseForm;

enum class Family { kSparse, kBlocks };

// A projector on both sides of a gradient or of its core, with the data of three ways to compute
// with it.
struct Case {
  std::int64_t n, d, tokens;
  BlocksThere blocks;
  SparseThere p;  // For kBlocks: the same projector, scattered.
  bool ours_is_blocks;
  DeviceArray<float> dense;                        // P.
  DeviceArray<float> g, core, half;                // n x n, d x d, d x n.
  DeviceArray<float> x;                            // tokens x n.
  DeviceArray<float> core_out, weight_out, x_out;  // Results of the library.
  DeviceArray<float> our_core, our_weight, our_x;

  Case(std::int64_t side, std::int64_t share, Family family)
      : n(side),
        d(side / share),
        tokens(device_sizes().tokens),
        blocks(n, 32, 32 / share),
        p(family == Family::kSparse ? SparseThere(n, d, 4) : SparseThere::scattered(blocks.side())),
        ours_is_blocks(family == Family::kBlocks),
        dense(p.dense()),
        g(random_there<float>(n * n, 1)),
        core(random_there<float>(d * d, 2)),
        half(count(d * n)),
        x(random_there<float>(tokens * n, 3)),
        core_out(count(d * d)),
        weight_out(std::vector<float>(count(n * n))),
        x_out(count(tokens * d)),
        our_core(count(d * d)),
        our_weight(std::vector<float>(count(n * n))),
        our_x(count(tokens * d)) {}

  Factor factor(const DeviceArray<float>& of, std::int64_t rows, std::int64_t cols,
                bool transposed = false) const {
    return {MatrixView<const float>(of.data(), rows, cols), transposed};
  }
};

enum class Product { kCompress, kDecompress, kLinear };

template <class Side>
std::int64_t scratch_elems(const Side& p) {
  return std::max({compress_scratch_elems(p.by_row(), p.right_of_compress()),
                   decompress_scratch_elems(p.by_row(), p.by_row()),
                   project_scratch_elems(p.by_row())});
}

template <class Side>
void ours(const Case& c, const Side& p, Product product, std::span<float> scratch,
          StreamRef stream) {
  switch (product) {
    case Product::kCompress:
      return compress(matrix_of(c.our_core, c.d, c.d), 0.0F, any_of(c.g, c.n, c.n), p.by_row(),
                      p.right_of_compress(), scratch, stream);
    case Product::kDecompress:  // Decay 0: calls do not add up, and the work is the same.
      return decompress(any_of(c.our_weight, c.n, c.n), {}, any_of(c.core, c.d, c.d), p.by_row(),
                        p.by_row(), {.decay = 0.0F, .alpha = 1.0F}, scratch, stream);
    case Product::kLinear:
      return project_rows(any_of(c.our_x, c.tokens, c.d), any_of(c.x, c.tokens, c.n), p.by_row(),
                          scratch, stream);
  }
}

void by_gemm(const Case& c, Product product, StreamRef stream) {
  const Factor p = c.factor(c.dense, c.n, c.d), pt = c.factor(c.dense, c.n, c.d, true);
  const Factor half = c.factor(c.half, c.d, c.n);
  const auto half_out = matrix_of(c.half, c.d, c.n);
  switch (product) {
    case Product::kCompress:
      cuda::gemm(1, pt, c.factor(c.g, c.n, c.n), 0, half_out, stream);
      return cuda::gemm(1, half, p, 0, matrix_of(c.core_out, c.d, c.d), stream);
    case Product::kDecompress:
      cuda::gemm(1, c.factor(c.core, c.d, c.d), pt, 0, half_out, stream);
      return cuda::gemm(1, p, half, 0, matrix_of(c.weight_out, c.n, c.n), stream);
    case Product::kLinear:
      return cuda::gemm(1, c.factor(c.x, c.tokens, c.n), p, 0, matrix_of(c.x_out, c.tokens, c.d),
                        stream);
  }
}

void by_sparse_library(const Case& c, Product product, StreamRef stream) {
  const auto half = matrix_of(c.half, c.d, c.n);
  const auto multiply = [&](const cuda::SparseMatrix& a, SparseForm form, MatrixView<const float> b,
                            MatrixView<float> out) {
    cuda::sparse_product(1, a, form, b, 0, out, cuda::SumOrder::kFastest, stream);
  };
  switch (product) {
    case Product::kCompress:
      multiply(c.p.transposed(), SparseForm::kPlain, matrix_of(c.g, c.n, c.n), half);
      return multiply(c.p.transposed(), SparseForm::kTransposed, half,
                      matrix_of(c.core_out, c.d, c.d));
    case Product::kDecompress:
      multiply(c.p.plain(), SparseForm::kTransposed, matrix_of(c.core, c.d, c.d), half);
      return multiply(c.p.plain(), SparseForm::kPlain, half, matrix_of(c.weight_out, c.n, c.n));
    case Product::kLinear:
      return multiply(c.p.transposed(), SparseForm::kTransposed, matrix_of(c.x, c.tokens, c.n),
                      matrix_of(c.x_out, c.tokens, c.d));
  }
}

// Largest difference, in units of the largest element.
double difference(const DeviceArray<float>& a, const DeviceArray<float>& b) {
  const std::vector<float> x = a.values(), y = b.values();
  double most = 0, largest = 1e-30;
  for (std::size_t i = 0; i < x.size(); ++i) {
    most = std::max(most, std::abs(static_cast<double>(x[i]) - static_cast<double>(y[i])));
    largest = std::max(largest, std::abs(static_cast<double>(y[i])));
  }
  return std::isfinite(most) ? most / largest : 1.0;
}

double difference(const Case& c, Product product) {
  switch (product) {
    case Product::kCompress:
      return difference(c.our_core, c.core_out);
    case Product::kDecompress:
      return difference(c.our_weight, c.weight_out);
    case Product::kLinear:
      return difference(c.our_x, c.x_out);
  }
  return 1.0;
}

void library_row(benchmark::State& state, std::int64_t share, Family family, Product product,
                 bool sparse) {
  const Case c(device_sizes().side, share, family);
  const DeviceArray<float> scratch(count(std::max(scratch_elems(c.p), scratch_elems(c.blocks))));
  const DeviceWork theirs = [&](StreamRef stream) {
    if (sparse) return by_sparse_library(c, product, stream);
    by_gemm(c, product, stream);
  };
  const DeviceWork our_own = [&](StreamRef stream) {
    if (c.ours_is_blocks) return ours(c, c.blocks, product, span_of(scratch), stream);
    ours(c, c.p, product, span_of(scratch), stream);
  };
  run_on_device_0(theirs);
  run_on_device_0(our_own);
  const double apart = difference(c, product);
  if (!(apart < 1e-4)) {
    return state.SkipWithError(("differs from ours by " + std::to_string(apart)).c_str());
  }
  std::vector<double> times, ratios;
  for ([[maybe_unused]] const auto _ : state) {
    times.push_back(device_seconds(theirs));
    ratios.push_back(times.back() / device_seconds(our_own));
    state.SetIterationTime(times.back());
  }
  state.counters["us"] = median(times) * 1e6;
  state.counters["vs_library"] = median(ratios);
  state.counters["difference"] = apart;
}

}  // namespace

void add_libraries() {
  const std::pair<const char*, Product> products[] = {{"compress", Product::kCompress},
                                                      {"decompress", Product::kDecompress},
                                                      {"project_rows", Product::kLinear}};
  const std::pair<const char*, Family> families[] = {{"sparse", Family::kSparse},
                                                     {"blocks", Family::kBlocks}};
  for (const std::int64_t share : {4, 2}) {
    for (const auto& [product_name, product] : products) {
      for (const auto& [family_name, family] : families) {
        for (const bool sparse : {true, false}) {
          const std::string name = std::string(product_name) + "_" + family_name +
                                   (sparse ? "_by_cusparse" : "_by_gemm") +
                                   "<float>/1/f:" + std::to_string(share);
          add_row(name, [=, product = product, family = family](benchmark::State& state) {
            library_row(state, share, family, product, sparse);
          });
        }
      }
    }
  }
}

}  // namespace sluiceway::bench
