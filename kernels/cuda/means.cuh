// Means of squares by row and column in one read, and their use: mean_squares() of residual.h.
#pragma once

#include "kernels/base/stream_ref.h"
#include "kernels/base/view.h"
#include "kernels/factored_moment.h"

namespace sluiceway::cuda {

// row[i] = mean over j of (scale g_ij)^2, col[j] = mean over i; then use_means(). Shapes are
// checked.
void means_of_squares(const AnyMatrix& g, const MeansPass& pass, float scale, StreamRef stream);

}  // namespace sluiceway::cuda
