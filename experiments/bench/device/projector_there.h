// Random projectors in the memory of CUDA device 0, in each form that a kernel or a library needs.
#pragma once

#include <cstdint>
#include <utility>
#include <vector>

#include "experiments/bench/device/device_bench.h"

namespace sluiceway::bench {

class SparseThere {
 public:
  SparseThere(std::int64_t rows, std::int64_t cols, std::int64_t nnz)
      : SparseThere(SparseSide(rows, cols, nnz)) {}
  explicit SparseThere(SparseSide&& side)
      : side_(std::move(side)),
        index_(side_.index),
        offset_(side_.offset),
        row_(side_.row),
        begin_(begins(side_)),
        value_(side_.value),
        column_value_(side_.column_value) {}

  // Converts blocks to the general sparse matrix that such a library takes.
  static SparseThere scattered(const BlockSide& blocks) {
    SparseSide side(blocks.rows, blocks.view().cols, blocks.kept);
    for (std::int64_t i = 0; i < side.rows; ++i) {
      for (std::int64_t k = 0; k < side.nnz; ++k) {
        side.index[count(i * side.nnz + k)] =
            static_cast<std::int32_t>(i / blocks.block * blocks.kept + k);
      }
    }
    side.value = blocks.value;
    sparse_columns(side.view(), side.offset, side.row, side.column_value);
    return SparseThere(std::move(side));
  }

  std::int64_t rows() const { return side_.rows; }
  std::int64_t cols() const { return side_.cols; }
  double nonzeros_a_row() const { return static_cast<double>(side_.nnz); }

  SparseRows by_row() const {
    return {index_.data(), value_.data(), side_.rows, side_.cols, side_.nnz};
  }
  SparseColumns by_column() const {
    return {offset_.data(), row_.data(), column_value_.data(), side_.rows, side_.cols, nonzeros()};
  }
  SparseColumns right_of_compress() const { return by_column(); }

  // The projector and its transpose, for the library.
  cuda::SparseMatrix plain() const {
    return {begin_.data(), index_.data(), value_.data(), side_.rows, side_.cols, nonzeros()};
  }
  cuda::SparseMatrix transposed() const {
    return {offset_.data(), row_.data(), column_value_.data(), side_.cols, side_.rows, nonzeros()};
  }
  std::vector<float> dense() const {
    std::vector<float> out(count(side_.rows * side_.cols));
    for (std::int64_t i = 0; i < side_.rows; ++i) {
      for (std::int64_t k = 0; k < side_.nnz; ++k) {
        const auto e = count(i * side_.nnz + k);
        out[count(i * side_.cols + side_.index[e])] = side_.value[e];
      }
    }
    return out;
  }

 private:
  std::int64_t nonzeros() const { return side_.rows * side_.nnz; }
  static std::vector<std::int32_t> begins(const SparseSide& side) {
    std::vector<std::int32_t> out;
    for (std::int64_t i = 0; i <= side.rows; ++i) {
      out.push_back(static_cast<std::int32_t>(i * side.nnz));
    }
    return out;
  }

  SparseSide side_;
  DeviceArray<std::int32_t> index_, offset_, row_, begin_;
  DeviceArray<float> value_, column_value_;
};

class BlocksThere {
 public:
  BlocksThere(std::int64_t rows, std::int64_t block, std::int64_t kept)
      : side_(rows, block, kept), value_(side_.value) {}

  std::int64_t rows() const { return side_.rows; }
  std::int64_t cols() const { return side_.view().cols; }
  double nonzeros_a_row() const { return static_cast<double>(side_.kept); }

  BlockRows by_row() const {
    BlockRows view = side_.view();
    view.value = value_.data();
    return view;
  }
  BlockRows right_of_compress() const { return by_row(); }
  const BlockSide& side() const { return side_; }

 private:
  BlockSide side_;
  DeviceArray<float> value_;
};

}  // namespace sluiceway::bench
