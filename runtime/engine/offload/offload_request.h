// The input of a step of the offload engine.
#pragma once

#include <cstdint>
#include <optional>
#include <span>

#include "kernels/adam.h"
#include "kernels/base/stream_ref.h"
#include "kernels/base/view.h"

namespace sluiceway {

// The time at which AdamW runs.
enum class UpdatePolicy : std::uint8_t {
  kSpill,        // After the step is decided; gradients wait in extents, or cores.
  kSpeculative,  // During the backward, with the values of expect() (speculation.h).
};

struct TensorHyper {
  double lr = 0, beta1 = 0, beta2 = 0, eps = 0, weight_decay = 0;

  bool operator==(const TensorHyper&) const = default;
  AdamHyper at_step(std::int64_t step) const { return {lr, beta1, beta2, eps, weight_decay, step}; }
};

struct OffloadRequest {
  std::span<const TensorHyper> hyper;       // One per tensor.
  std::span<const AnyMatrix> tensors;       // One per tensor, contiguous, with present addresses.
  float factor = 1;                         // Common factor of all gradients: unscale, clip.
  double other_sum_squares = 0;             // Of gradients outside the engine, for the common norm.
  std::span<const float> own_factors = {};  // One per tensor, times `factor`; empty: 1 each.
  bool norm = true;  // Report the norm, even if that requires reading every extent.
  // Updates follow all work on this stream; none: on the stream of the last gradient.
  std::optional<StreamRef> compute = {};
};

}  // namespace sluiceway
