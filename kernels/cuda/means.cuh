// Means of squares by row and column in one read: mean_squares() of residual.h.
#pragma once

#include "kernels/base/stream_ref.h"
#include "kernels/base/view.h"

namespace sluiceway::cuda {

// rows[i] = mean over j of (scale g_ij)^2, cols[j] = mean over i; shapes are checked.
void means_of_squares(const AnyMatrix& g, float* rows, float* cols, float scale, StreamRef stream);

}  // namespace sluiceway::cuda
