// The learner's algorithms on tensors of any torch device. All results lie where the gradient lies,
// so a gradient on a GPU is never copied to the host.
//
// Only small data crosses to the host: the numbers that decide when to stop, one copy for each
// learning step, and the pivots of a range finder, one for each of its columns.
//
// Numerics: as in learner.h. Random numbers are drawn on the host, the same for every device. Each
//           kind of device sums in one order, so equal calls give equal bits. If the rank of a
//           gradient is below the number of requested directions, the surplus ones come from
//           rounding and differ between kinds of devices.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>

#include "compress/learner.h"
#include "compress/learner_objective.h"

namespace sluiceway {

struct Directions {
  at::Tensor left, right;  // f32, orthonormal columns; undefined if not requested.
};

// `g` is dense f32, and is consumed. Request no more columns than its shorter side.
Directions leading_directions_of(at::Tensor g, std::int64_t left, std::int64_t right,
                                 std::uint64_t seed);

// `p_value` and `q_value` are f32[rows, nnz]; on return they hold the best values found.
LearnOutcome learn_values(const at::Tensor& g, SparsePattern p, SparsePattern q,
                          const at::Tensor& p_value, const at::Tensor& q_value,
                          const LearnOptions& options);

}  // namespace sluiceway
