// What a step of the offload engine is made with.
#pragma once

#include <cstdint>
#include <optional>
#include <span>

#include "kernels/adam.h"
#include "kernels/base/stream_ref.h"
#include "kernels/base/view.h"

namespace sluiceway {

// When AdamW runs.
enum class UpdatePolicy : std::uint8_t {
  kSpill,        // After the step is decided; gradients wait in extents, or cores.
  kSpeculative,  // During the backward, as expect() said that the step would be (speculation.h).
};

struct TensorHyper {
  double lr = 0, beta1 = 0, beta2 = 0, eps = 0, weight_decay = 0;

  bool operator==(const TensorHyper&) const = default;
  AdamHyper at_step(std::int64_t step) const { return {lr, beta1, beta2, eps, weight_decay, step}; }
};

struct OffloadRequest {
  std::span<const TensorHyper> hyper;  // One a tensor.
  std::span<const AnyMatrix> tensors;  // One a tensor, contiguous, as they are now.
  float factor = 1;                    // What others multiplied the gradient with: unscale, clip.
  double other_sum_squares = 0;        // Of gradients outside the engine, for the common norm.
  std::span<const float> own_factors = {};  // One a tensor, beside `factor`; empty: 1 each.
  bool norm = true;  // Report the norm, also where only reading every extent tells it.
  // Updates come after all that this stream has been given; none: that of the last gradient.
  std::optional<StreamRef> compute = {};
};

}  // namespace sluiceway
