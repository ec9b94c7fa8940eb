// The state of one weight for a resume: views to save, and functions that check and load them.
//
//   name           elements        dtype   of
//   exp_avg        core            f32     m
//   exp_avg_sq     core | dm + dn  f32     v, or its means of rows and then of columns
//   codec          bytes                   grammar in compress/codec_state.h
//   low_bits       m n, or 0       u16     low halves of the weight, for residual updates
//   residual       m + n, or 0     f32     v_r and v_c of the factored residual
//
// Ownership:     a saved state refers to the engine's memory until the next gradient arrives; copy
//                it to keep it. `codec` is a copy, and `copies` holds copies of state in the memory
//                of a CUDA device.
// Errors:        InvalidArgument or Corrupt, naming the weight and both sizes, with nothing
//                changed. load_state() accepts every state that check_state() accepts.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "runtime/engine/subspace/subspace_weight.h"

namespace sluiceway {

struct WeightState {
  std::int64_t step = 0;  // Number of committed updates.
  std::span<const float> exp_avg, exp_avg_sq;
  std::vector<std::byte> codec;
  std::span<const std::uint16_t> low_bits;
  int backwards = 1;  // The payload leaves after this many.
  std::span<const float> residual;
  std::int64_t residual_step = 0;
  std::vector<std::shared_ptr<const std::byte[]>> copies = {};
};

// Takes `backwards` from the gate, everything else from the weight. No enqueued work may use the
// weight.
WeightState save_state(const SubspaceWeight& weight, int backwards);
void check_state(const SubspaceWeight& weight, const WeightState& state);
void load_state(SubspaceWeight& weight, const WeightState& state);

}  // namespace sluiceway
