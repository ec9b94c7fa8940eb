// Y = G Q for a sparse Q by column, for compress() and project_rows().
//
// Our kernel covers rows of G that fit into a block's shared memory. A vendor library takes wider
// ones (sparse_product.h), some rows at a time: a 16-bit G is widened to f32, and a 16-bit Y is
// rounded. Only this function chooses between the two.
#pragma once

#include <cstdint>
#include <span>

#include "kernels/base/stream_ref.h"
#include "kernels/base/view.h"
#include "kernels/projector_shapes.h"

namespace sluiceway::cuda {

// Tells whether the library multiplies gradients with this many columns.
constexpr bool is_wide(std::int64_t cols) noexcept { return cols > kMostStagedCols; }

// Returns the elements of scratch for each row that the library makes at a time; 0 with our kernel.
std::int64_t library_row_elems(DType g, const SparseColumns& q, DType y);

// Rounds Y to its type once. For the library, `scratch` has room for at least one row and 2
// kPadElems; our kernel uses none. The caller must hold no StreamScratch of this stream, since the
// library works in it. Error texts start with `name`, the name of the operation.
void project_columns(const char* name, const AnyMatrix& g, const SparseColumns& q,
                     const AnyMatrix& y, std::span<float> scratch, StreamRef stream);

}  // namespace sluiceway::cuda
