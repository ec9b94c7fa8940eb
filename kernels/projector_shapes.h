// Shape checks and the scratch layout that compress, decompress and bias_norm share.
//
// Errors: each check throws InvalidArgument, naming `function` and both shapes.
#pragma once

#include <cstdint>
#include <span>

#include "kernels/base/view.h"
#include "kernels/decompress.h"

namespace sluiceway {

inline constexpr std::int64_t kPanelRows = 16;    // Rows of a sparse panel, which lanes run over.
inline constexpr std::int64_t kTileCols = 256;    // Approximate columns of a tile: 16 KiB a panel.
inline constexpr std::int64_t kPieceRows = 8;     // Rows of W at a time, each a stream of memory.
inline constexpr std::int64_t kDenseSlab = 64;    // Rows for which a dense Q is read once: panels.
inline constexpr std::int64_t kDenseDepth = 128;  // Terms of a dense sum at once: 8 KiB a panel.
inline constexpr std::int64_t kPadElems = 16;     // Widest vector; also 64 bytes, a cache line.

// Columns of a gradient whose row fits into the shared memory of a CUDA block. For wider gradients
// a library multiplies by a sparse projector.
inline constexpr std::int64_t kMostStagedCols = 12288;

constexpr std::int64_t padded(std::int64_t elems) noexcept {
  return (elems + kPadElems - 1) / kPadElems * kPadElems;
}

// Columns of a tile that consists of whole groups of q.
constexpr std::int64_t block_tile_cols(const BlockRows& q) noexcept {
  return q.block >= kTileCols ? q.block : kTileCols / q.block * q.block;
}

// Elements between rows of a panel of G P: a vector may reach beyond the last group's columns.
constexpr std::int64_t block_panel_stride(const BlockRows& p) noexcept {
  return padded(p.cols) + kPadElems;
}

// Cuts scratch into arrays that start on a cache line.
class ScratchCutter {
 public:
  explicit ScratchCutter(std::span<float> scratch) noexcept;
  float* take(std::int64_t elems) noexcept;
  std::span<float> rest() const noexcept { return {next_, left_}; }

  // Scratch for a sequence of take(elems) calls: the sum of their costs, plus kPadElems once.
  static constexpr std::int64_t cost(std::int64_t elems) noexcept { return padded(elems); }

 private:
  float* next_;
  std::size_t left_;
};

// A matrix argument under the name that error texts give it.
struct NamedShape {
  const char* name;
  std::int64_t rows, cols, stride;
};

template <typename M>
NamedShape named(const char* name, const M& m) noexcept {
  return {name, m.rows, m.cols, m.stride};
}

void check_shape(const char* function, const NamedShape& m, std::int64_t rows, std::int64_t cols);
void check_blocks(const char* function, const char* name, const BlockRows& p);
// Checks a weight of this shape: its type supports the rounding, and it has low bits if needed.
void check_weight(const char* function, const AnyMatrix& w, const MatrixView<std::uint16_t>& low,
                  const WeightUpdate& update, std::int64_t rows, std::int64_t cols);
// Checks the lengths of the mean squares of g's rows and columns.
void check_means(const char* function, std::span<const float> rows, std::span<const float> cols,
                 const AnyMatrix& g);
void check_scratch(const char* function, std::size_t elems, std::int64_t expected);

}  // namespace sluiceway
