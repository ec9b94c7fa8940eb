// Borrowed views of arrays: a pointer, a shape and a stride, never ownership.
//
// Sizes are in elements and signed, as in libtorch. An empty view may hold nullptr.
#pragma once

#include <cstddef>
#include <cstdint>
#include <type_traits>

#include "kernels/base/dtype.h"

namespace sluiceway {

// A rows x cols matrix, row-major; row i starts at data + i * stride, stride >= cols.
template <typename T>
struct MatrixView {
  T* data = nullptr;
  std::int64_t rows = 0;
  std::int64_t cols = 0;
  std::int64_t stride = 0;

  MatrixView() = default;
  constexpr MatrixView(T* d, std::int64_t r, std::int64_t c) : MatrixView(d, r, c, c) {}
  constexpr MatrixView(T* d, std::int64_t r, std::int64_t c, std::int64_t s)
      : data(d), rows(r), cols(c), stride(s) {}
  template <typename U>
  requires(std::is_same_v<const U, T>)
      // A view of T converts to a view of const T. NOLINTNEXTLINE(google-explicit-constructor)
      constexpr MatrixView(const MatrixView<U>& other) noexcept
      : MatrixView(other.data, other.rows, other.cols, other.stride) {}

  constexpr T* row(std::int64_t i) const noexcept { return data + i * stride; }
  constexpr std::int64_t elems() const noexcept { return rows * cols; }
  constexpr bool contiguous() const noexcept { return stride == cols || rows <= 1; }
  constexpr MatrixView row_range(std::int64_t first, std::int64_t last) const noexcept {
    return {data + first * stride, last - first, cols, stride};
  }
};

// A matrix whose element type is known only at run time. The type does not carry constness: a
// kernel that only reads names the parameter `g`, one that writes names it `w`.
struct AnyMatrix {
  void* data = nullptr;
  std::int64_t rows = 0;
  std::int64_t cols = 0;
  std::int64_t stride = 0;
  DType dtype = DType::kF32;

  template <typename T>
  constexpr MatrixView<T> as() const noexcept {
    return {static_cast<T*>(data), rows, cols, stride};
  }
  AnyMatrix row_range(std::int64_t first, std::int64_t last) const noexcept {
    const std::int64_t bytes = first * stride * static_cast<std::int64_t>(size_bytes(dtype));
    return {static_cast<std::byte*>(data) + bytes, last - first, cols, stride, dtype};
  }
};

// A (rows x cols) projector with `nnz` nonzeros in each row.
//
//   index  rows x nnz  i32   columns of the nonzeros, in [0, cols), distinct within a row
//   value  rows x nnz  f32   their values
struct SparseRows {
  const std::int32_t* index = nullptr;
  const float* value = nullptr;
  std::int64_t rows = 0;
  std::int64_t cols = 0;
  std::int64_t nnz = 0;

  constexpr SparseRows row_range(std::int64_t first, std::int64_t last) const noexcept {
    return {index + first * nnz, value + first * nnz, last - first, cols, nnz};
  }
};

// The same (rows x cols) projector by column, as sparse_columns() of kernels/sparse_columns.h makes
// it.
//
//   offset  cols + 1  i32   nonzeros of column c are [offset[c], offset[c + 1])
//   row     nonzeros  i32   their rows, ascending within a column
//   value   nonzeros  f32   their values
struct SparseColumns {
  const std::int32_t* offset = nullptr;
  const std::int32_t* row = nullptr;
  const float* value = nullptr;
  std::int64_t rows = 0;
  std::int64_t cols = 0;
  std::int64_t nonzeros = 0;  // Equals offset[cols], for code that cannot read that array.
};

// A (rows x cols) block-diagonal projector with orthonormal columns.
//
// Rows come in consecutive groups of `block`; group g owns the `kept` consecutive columns
// [g * kept, (g + 1) * kept). The last group may be shorter: it has rows - g * block rows and
// last_kept columns. `value` is rows x kept, row-major; the last group uses its first last_kept.
//
//   value  rows x kept  f32   row i, column c: entry (i, (i / block) * kept + c)
struct BlockRows {
  const float* value = nullptr;
  std::int64_t rows = 0;
  std::int64_t cols = 0;
  std::int64_t block = 0;
  std::int64_t kept = 0;
  std::int64_t last_kept = 0;

  constexpr std::int64_t groups() const noexcept {
    return block == 0 ? 0 : (rows + block - 1) / block;
  }

  // Returns groups [first, last) with the columns that they own, which start at column first *
  // kept.
  constexpr BlockRows group_range(std::int64_t first, std::int64_t last) const noexcept {
    const bool to_the_end = last == groups();
    const std::int64_t last_row = to_the_end ? rows : last * block;
    const std::int64_t last_col = to_the_end ? cols : last * kept;
    return {value + first * block * kept,
            last_row - first * block,
            last_col - first * kept,
            block,
            kept,
            to_the_end ? last_kept : kept};
  }
};

}  // namespace sluiceway
