// Fits the projectors of block families to one calibration gradient, for fits without libtorch.
//
//   fit_block_pca       each group of rows (columns) of G: its leading left (right) directions,
//                       from the eigenvectors of the group's second moment
//   fit_top_columns     Q = unit vectors of the columns of G with the largest norms
//   fill_unit_blocks    identity blocks, for a side that is not projected
//
// The columns are orthonormal, by descending energy within a group, in the layout of `value`.
//
// Numerics: sums and eigenvectors in double; equal calls give equal bits.
// Cost:     fit_block_pca: 2 m n block flop a side and O(block^3) a group.
#pragma once

#include <span>

#include "compress/side.h"
#include "kernels/base/view.h"

namespace sluiceway {

void fit_block_pca(const AnyMatrix& g, Side side, const BlockRows& layout, std::span<float> value);
void fit_top_columns(const AnyMatrix& g, const BlockRows& layout, std::span<float> value);
void fill_unit_blocks(const BlockRows& layout, std::span<float> value);

}  // namespace sluiceway
