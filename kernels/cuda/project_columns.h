// Y = G Q for a sparse Q by column: what both compress() and project_rows() need.
//
// Our kernel covers rows of G that fit into the shared memory of a block. Wider ones are the
// library's (sparse_product.h): G is widened to f32 where it is of 16 bits, and Y is rounded where
// that is, some rows at a time. This is the only place that chooses.
#pragma once

#include <cstdint>
#include <span>

#include "kernels/base/stream_ref.h"
#include "kernels/base/view.h"
#include "kernels/projector_shapes.h"

namespace sluiceway::cuda {

// Whether rows of a gradient of so many columns are the library's.
constexpr bool is_wide(std::int64_t cols) noexcept { return cols > kMostStagedCols; }

// Elements of scratch for each row that the library makes at a time; 0 where our kernel does.
std::int64_t library_row_elems(DType g, const SparseColumns& q, DType y);

// Y is rounded to its type once. For the library `scratch` has room for a row at least, and
// 2 kPadElems; our kernel uses none. The caller holds no StreamScratch of this stream, which the
// library works in. `name` is the operation's, for errors.
void project_columns(const char* name, const AnyMatrix& g, const SparseColumns& q,
                     const AnyMatrix& y, std::span<float> scratch, StreamRef stream);

}  // namespace sluiceway::cuda
