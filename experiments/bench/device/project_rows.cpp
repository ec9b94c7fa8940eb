// compress(), decompress(), project_rows(), residual_form() and bias_norm() on CUDA device 0, and
// the same products by general libraries: a sparse one (cuSPARSE) with scattered P and Q, and a
// dense one (cuBLAS) with expanded P and Q.
#include <memory>

#include "experiments/bench/device/projector_there.h"
#include "kernels/bias_norm.h"
#include "kernels/compress.h"
#include "kernels/compress_linear.h"
#include "kernels/cuda/dense.h"
#include "kernels/decompress.h"
#include "kernels/residual_form.h"

namespace sluiceway::bench {
namespace {

constexpr std::int64_t kNonzeros = 4, kBlock = 32;

// A weight of side x side, and the kind of its projectors.
struct Layer {
  std::int64_t side, share;

  SparseThere sparse() const { return {side, side / share, kNonzeros}; }
  BlocksThere blocks() const { return {side, kBlock, kBlock / share}; }
  BlocksThere dense() const { return {side, side, side / share}; }
  double elems() const { return static_cast<double>(side * side); }

  template <class Side>
  double flop(const Side& p) const {
    return 2 * p.nonzeros_a_row() * static_cast<double>(side * (side + p.cols()));
  }
};

template <typename T, class Side>
void compress_row(benchmark::State& state, const Layer& layer, const Side& p) {
  const auto g = random_there<T>(layer.side * layer.side, 1);
  const DeviceArray<float> s(count(p.cols() * p.cols()));
  const DeviceArray<float> scratch(
      count(compress_scratch_elems(p.by_row(), p.right_of_compress())));
  run_on_device(
      state, layer.elems() * sizeof(T), layer.flop(p), &Roof::read_gb_per_s, [&](StreamRef stream) {
        compress(matrix_of(s, p.cols(), p.cols()), 0.0F, any_of(g, layer.side, layer.side),
                 p.by_row(), p.right_of_compress(), span_of(scratch), stream);
      });
}

template <typename T, class Side>
void decompress_row(benchmark::State& state, const Layer& layer, const Side& p, Rounding rounding) {
  const auto w = random_there<T>(layer.side * layer.side, 1);
  const auto d = random_there<float>(p.cols() * p.cols(), 2);
  const DeviceArray<float> scratch(count(decompress_scratch_elems(p.by_row(), p.by_row())));
  const WeightUpdate update{.decay = 0.999F, .alpha = 1e-6F, .rounding = rounding};
  run_on_device(state, 2 * layer.elems() * sizeof(T), layer.flop(p), &Roof::update_gb_per_s,
                [&](StreamRef stream) {
                  decompress(any_of(w, layer.side, layer.side), {}, any_of(d, p.cols(), p.cols()),
                             p.by_row(), p.by_row(), update, span_of(scratch), stream);
                });
}

template <typename T, class Side>
void linear_row(benchmark::State& state, const Layer& layer, const Side& p) {
  const std::int64_t tokens = device_sizes().tokens;
  const auto g = random_there<T>(tokens * layer.side, 1);
  const DeviceArray<T> w(count(tokens * p.cols()));
  const DeviceArray<float> scratch(count(project_scratch_elems(p.by_row())));
  const auto rows = static_cast<double>(tokens);
  run_on_device(state, rows * static_cast<double>(layer.side + p.cols()) * sizeof(T),
                2 * p.nonzeros_a_row() * rows * static_cast<double>(layer.side),
                &Roof::read_gb_per_s, [&](StreamRef stream) {
                  project_rows(any_of(w, tokens, p.cols()), any_of(g, tokens, layer.side),
                               p.by_row(), span_of(scratch), stream);
                });
}

template <typename T, class Side>
void form_row(benchmark::State& state, const Layer& layer, const Side& p) {
  const auto g = random_there<T>(layer.side * layer.side, 1);
  const auto s = random_there<float>(p.cols() * p.cols(), 2);
  const DeviceArray<float> rows(count(layer.side)), cols(count(layer.side));
  const DeviceArray<float> scratch(count(decompress_scratch_elems(p.by_row(), p.by_row())));
  run_on_device(state, 2 * layer.elems() * sizeof(T), layer.flop(p), &Roof::update_gb_per_s,
                [&](StreamRef stream) {
                  residual_form(any_of(g, layer.side, layer.side), matrix_of(s, p.cols(), p.cols()),
                                p.by_row(), p.by_row(), {{span_of(rows), span_of(cols)}},
                                span_of(scratch), stream);
                });
}

void bias_row(benchmark::State& state, const Layer& layer) {
  const BlocksThere p = layer.blocks();
  const auto g = random_there<float>(layer.side * layer.side, 1);
  const DeviceArray<BiasNorm> result(1);
  const DeviceArray<float> scratch(count(bias_norm_scratch_elems(p.by_row(), p.by_row())));
  run_on_device(state, 2 * layer.elems() * sizeof(float), 2 * layer.flop(p), &Roof::read_gb_per_s,
                [&](StreamRef stream) {
                  bias_norm(result.data(), any_of(g, layer.side, layer.side), p.by_row(),
                            p.by_row(), span_of(scratch), stream);
                });
}

// Gradients with more and with fewer columns than our kernel covers (project_columns.h). The
// scratch has the size that a codec asks for.
void wide_row(benchmark::State& state, std::int64_t cols) {
  const std::int64_t rows = device_sizes().side / 4;
  const SparseThere p(rows, rows / 4, kNonzeros), q(cols, cols / 4, kNonzeros);
  const auto g = random_there<bf16>(rows * cols, 1);
  const DeviceArray<float> s(count(p.cols() * q.cols()));
  const DeviceArray<float> scratch(count(bias_norm_scratch_elems(p.by_row(), q.by_row())));
  const double nonzeros = p.nonzeros_a_row() * static_cast<double>(rows);
  run_on_device(state, static_cast<double>(rows * cols) * sizeof(bf16),
                2 * nonzeros * static_cast<double>(cols + q.cols()), &Roof::read_gb_per_s,
                [&](StreamRef stream) {
                  compress(matrix_of(s, p.cols(), q.cols()), 0.0F, any_of(g, rows, cols),
                           p.by_row(), q.by_column(), span_of(scratch), stream);
                });
}

template <typename T, class Side>
void add_family(const std::string& family, const Layer& layer, Side (Layer::*make)() const) {
  const std::string of = family + "<" + (sizeof(T) == 4 ? "float" : "bf16") +
                         ">/n:" + std::to_string(layer.side) +
                         "/1/f:" + std::to_string(layer.share);
  add_row("compress_" + of,
          [=](benchmark::State& state) { compress_row<T>(state, layer, (layer.*make)()); });
  add_row("decompress_" + of, [=](benchmark::State& state) {
    decompress_row<T>(state, layer, (layer.*make)(), Rounding::kNearest);
  });
  if constexpr (sizeof(T) == 2) {
    add_row("decompress_stochastic_" + of, [=](benchmark::State& state) {
      decompress_row<T>(state, layer, (layer.*make)(), Rounding::kStochastic);
    });
  }
  add_row("project_rows_" + of,
          [=](benchmark::State& state) { linear_row<T>(state, layer, (layer.*make)()); });
  add_row("residual_form_" + of,
          [=](benchmark::State& state) { form_row<T>(state, layer, (layer.*make)()); });
}

}  // namespace

void add_project_rows() {
  for (const std::int64_t share : {4, 2}) {
    const Layer layer{device_sizes().side, share};
    add_family<bf16>("sparse", layer, &Layer::sparse);
    add_family<float>("sparse", layer, &Layer::sparse);
    add_family<bf16>("blocks", layer, &Layer::blocks);
    add_family<float>("blocks", layer, &Layer::blocks);
    add_row("bias_norm_blocks<float>/1/f:" + std::to_string(share),
            [=](benchmark::State& state) { bias_row(state, layer); });
  }
  add_family<bf16>("dense", {device_sizes().side, 4}, &Layer::dense);
  for (const std::int64_t cols : {12288, 14336}) {
    add_row("compress_wide_sparse<bf16>/n:" + std::to_string(cols),
            [=](benchmark::State& state) { wide_row(state, cols); });
  }
}

}  // namespace sluiceway::bench
