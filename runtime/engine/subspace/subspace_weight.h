// One weight of the subspace engine: its codec and buffers, and two records of the current step.
//
//   low        m x n   u16   device   low halves of the weight, for residual updates
//   residual   m + n   f32   device   moments of what the codec leaves, their roots, a verdict
//
// Each phase of a step writes its own record. subspace_engine_gather.cpp writes Gathering until the
// payload leaves. subspace_engine_update.cpp writes Applying before the step is committed;
// afterwards the lanes only read it. Committed state is in CoreMoments, GradientResidual and the
// codec.
//
// Thread safety: the executor hands a weight from thread to thread; no two use it at once.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>

#include "compress/gradient_codec.h"
#include "compress/gradient_residual.h"
#include "runtime/device/event.h"
#include "runtime/engine/subspace/core_moments.h"
#include "runtime/engine/subspace/core_staging.h"
#include "runtime/engine/subspace/weight_plan.h"

namespace sluiceway {

// The step whose gradient is being gathered; complements the gate's record of the same part.
struct Gathering {
  AnyMatrix total;                // The gradient so far, lent by the caller; only with a residual.
  bool begun = false;             // The core holds part of this step's gradient,
  bool partly_as_core = false;    // but part came as a core, so there is no residual.
  bool residual_done = false;     // Its turn came before the step was decided,
  bool residual_applied = false;  // and it was enqueued; GradientResidual knows the result.
  int target = 0;                 // Index of the moments that the payload writes.
  bool scan_enqueued = false;     // For the present gradient; its result may not be here yet.
};

// The step that is being applied.
struct Applying {
  AdamHyper adam{};
  float factor = 1;  // Unscale and clip.
  WeightUpdate update{};
  AnyMatrix weight;
  Event reached;  // Work enqueued before the step on the computing stream.
  bool residual_due = false;
  AnyMatrix residual_gradient;
  ResidualStep residual_step;
};

class SubspaceWeight {
 public:
  SubspaceWeight(WeightSpec weight_spec, DeviceId where, Budget& budget);

  bool has_core() const noexcept { return plan.core.elems() > 0; }
  bool crosses() const noexcept { return has_core() && spec.tier == CoreTier::kHost; }
  MatrixView<std::uint16_t> low_bits() const noexcept;
  std::size_t scratch_elems() const noexcept { return codec->scratch_elems(); }
  std::size_t refresh_scratch_elems() const noexcept { return codec->refresh_scratch_elems(); }
  std::size_t host_scratch_elems() const noexcept {
    return plan.host_scratch_bytes / sizeof(float);
  }

  // Trains the weight with the residual of `whole`, a step's gradient, which is overwritten.
  void apply_residual(const AnyMatrix& whole, const AnyMatrix& w, const ResidualStep& step,
                      std::span<float> scratch, StreamRef stream);
  // W <- decay W + alpha P D Q^T with the arrived direction; applies a waiting residual first.
  void apply(std::span<float> scratch, StreamRef stream);

  const WeightSpec spec;
  const DeviceId device;
  const std::uint64_t hash;  // Of the name; keys every random draw.
  const WeightPlan plan;
  const std::unique_ptr<GradientCodec> codec;
  std::optional<GradientResidual> residual;
  bool residual_at_once = false;  // In the last promised backward; otherwise in step().
  bool holds_gradient = false;    // Until the step is decided; the engine has reserved it.
  CoreStaging staging;
  CoreMoments moments;
  Gathering gathering;
  Applying applying;

 private:
  Buffer low_;
};

}  // namespace sluiceway
