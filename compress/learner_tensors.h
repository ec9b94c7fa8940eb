// What the learner does, on tensors of any device of torch's: all that is made lies where the
// gradient lies, so that a gradient on a GPU is never copied to the host.
//
// What crosses to the host is small: the numbers that say when to stop, one copy a step of
// learning, and the pivots of a range finder, one for each of its columns.
//
// Numerics: those of learner.h. Random numbers are drawn on the host, the same for every device;
//           sums are made in one order on each kind of device, so equal calls give equal bits.
//           Where the rank of a gradient is lower than the number of directions that are asked for,
//           those beyond it are what rounding makes of them: two kinds of devices have others.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>

#include "compress/learner.h"
#include "compress/learner_objective.h"

namespace sluiceway {

struct Directions {
  at::Tensor left, right;  // f32, orthonormal columns; undefined where none were asked for.
};

// `g` is dense, f32, and used up. No more columns than its shorter side.
Directions leading_directions_of(at::Tensor g, std::int64_t left, std::int64_t right,
                                 std::uint64_t seed);

// `p_value` and `q_value` are f32[rows, nnz]; the best ones that were met stay in them.
LearnOutcome learn_values(const at::Tensor& g, SparsePattern p, SparsePattern q,
                          const at::Tensor& p_value, const at::Tensor& q_value,
                          const LearnOptions& options);

}  // namespace sluiceway
