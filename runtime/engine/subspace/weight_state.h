// What a resume needs of one weight: views to save it from, and how it is checked and loaded.
//
//   name           elements        dtype   of
//   exp_avg        core            f32     m
//   exp_avg_sq     core | dm + dn  f32     v, or its means of rows and then of columns
//   codec          bytes                   grammar in compress/codec_state.h
//   low_bits       m n, or 0       u16     low halves of the weight, for residual updates
//   residual       m + n, or 0     f32     v_r and v_c of the factored residual
//
// Ownership:     a state saved from an engine looks into its memory until the next gradient comes;
//                copy it to keep it. `codec` is a copy already, and so is, in `copies`, what the
//                engine has in the memory of a CUDA device.
// Errors:        InvalidArgument or Corrupt, naming the weight and both sizes: check_state() has
//                changed nothing, and what it accepts load_state() takes.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "runtime/engine/subspace/subspace_weight.h"

namespace sluiceway {

struct WeightState {
  std::int64_t step = 0;  // Committed updates.
  std::span<const float> exp_avg, exp_avg_sq;
  std::vector<std::byte> codec;
  std::span<const std::uint16_t> low_bits;
  int backwards = 1;  // After how many a payload leaves.
  std::span<const float> residual;
  std::int64_t residual_step = 0;
  std::vector<std::shared_ptr<const std::byte[]>> copies = {};
};

// `backwards` is the gate's; everything else the weight knows. Nothing that is enqueued anywhere
// uses the weight.
WeightState save_state(const SubspaceWeight& weight, int backwards);
void check_state(const SubspaceWeight& weight, const WeightState& state);
void load_state(SubspaceWeight& weight, const WeightState& state);

}  // namespace sluiceway
