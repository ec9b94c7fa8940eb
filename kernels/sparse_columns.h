// Converts a sparse projector from rows to columns, once per generation.
//
// compress() sums over a column of Q, decompress() over a row; so each keeps its sum in registers.
//
// Errors: InvalidArgument: an index outside [0, cols), an array of the wrong size, or more than
//         2^31 - 1 nonzeros; nothing was written.
// Cost:   O(rows * nnz + cols).
#pragma once

#include <cstdint>
#include <span>

#include "kernels/base/view.h"

namespace sluiceway {

// Fills the three arrays, of q.cols + 1, q.rows * q.nnz and q.rows * q.nnz elements, and returns a
// view of them. Rows ascend within a column.
SparseColumns sparse_columns(const SparseRows& q, std::span<std::int32_t> offset,
                             std::span<std::int32_t> row, std::span<float> value);

}  // namespace sluiceway
