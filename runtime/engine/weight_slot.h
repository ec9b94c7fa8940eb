// Everything the engine holds for one compressed weight: codec, accumulator, staging, moments.
//
//   accumulator   core      f32     device   sum of the compressed micro-batches
//   packed        core      wire    device   the accumulator as it crosses (f32 wire: unused)
//   gradient      core      wire    pinned   as it arrived on the host
//   moments       core      f32     host     m and v, or v's dm + dn means; twice while speculative
//   direction     core      wire    pinned   what AdamW on the core made of it
//   arrived       core      wire    device   the direction, ready to be applied
//   low           m x n     u16     device   low halves of the weight, for residual updates
//   roots         dm + dn   f32     host     of a factored second moment
//   residual      m + n     f32     device   moments of what the codec leaves, and their roots
//
// With CoreTier::kDevice the moments and one f32 direction live on the device and nothing crosses.
//
// Thread safety: the phases of a step hand a slot from thread to thread through the executor; no
//                two threads use one slot at the same time.
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>

#include "compress/gradient_codec.h"
#include "kernels/adam.h"
#include "kernels/overflow_scan.h"
#include "runtime/engine/weight_plan.h"
#include "runtime/memory/buffer.h"

namespace sluiceway {

class WeightSlot {
 public:
  WeightSlot(WeightSpec spec, DeviceId device, Budget& budget);

  // S <- beta S + P^T G Q on the calling thread's stream; beta is 0 for the first micro-batch.
  void accumulate(const AnyMatrix& g, std::span<float> scratch, StreamRef stream);
  // Finite flag and sum of squares of the accumulated core; packs it for the wire when `pack`.
  void scan(bool pack);
  void clear() noexcept;  // Forgets the accumulated gradient.

  // AdamW on the core. Reads moments `from`, writes moments `to`; equal for an update in place.
  // `scratch` has host_scratch_elems() elements.
  void update_core(int from, int to, const AdamHyper& hyper, float scale, std::span<float> scratch);
  // Trains the weight with the residual of `whole`, the gradient of a step, which is used up.
  void apply_residual(const AnyMatrix& whole, const AnyMatrix& w, const ResidualStep& step,
                      std::span<float> scratch, StreamRef stream);
  // W <- decay W + alpha P D Q^T, with what arrived; first the residual, where it waited.
  void apply(std::span<float> scratch, StreamRef stream);
  // Counts a gradient that is kept until step(). OutOfMemory, with its name.
  void hold_gradient(Budget& budget);
  std::uint64_t held_bytes() const noexcept { return held_.bytes(); }

  Moments moments(int which) const noexcept;
  // v of moments(), whichever way it is kept, as one array.
  std::span<float> second_moment(int which) const noexcept;
  bool has_spare() const noexcept { return m_[1].size() != 0 || core_elems() == 0; }
  bool has_core() const noexcept { return core_elems() > 0; }
  void add_spare(DeviceId device, Budget& budget);  // OutOfMemory: nothing changed.

  std::int64_t core_elems() const noexcept { return plan.core.elems(); }
  MatrixView<float> core() const noexcept;
  MatrixView<std::uint16_t> low_bits() const noexcept;
  std::span<const std::byte> outgoing() const noexcept;  // What crosses to the host.

  std::size_t scratch_elems() const noexcept;          // For accumulate() and apply().
  std::size_t refresh_scratch_elems() const noexcept;  // And for a refresh of the codec.
  std::size_t host_scratch_elems() const noexcept;     // For update_core().

  void commit(int promised_backwards) noexcept;  // The gathered gradient is now being applied.

  WeightSpec spec;
  std::uint64_t hash = 0;  // Of the name.
  WeightPlan plan;
  std::unique_ptr<GradientCodec> codec;
  std::optional<GradientResidual> residual;
  bool residual_at_once = false;  // In the last promised backward; otherwise it waits for step().
  Buffer gradient, direction, arrived;

  // The gradient of the step that is being gathered.
  int backwards = 0;  // Micro-batches accumulated.
  int expected = 1;   // After how many the payload leaves.
  bool scanned = false;
  bool submitted = false;
  bool residual_done = false;  // Applied before step().
  AnyMatrix total;             // The gradient so far, lent by the caller; only with a residual.
  ScanResult scan_result{};
  struct Forecast {  // With what a speculative payload was computed.
    AdamHyper adam{};
    float factor = 1;
  };
  std::optional<Forecast> forecast;
  int target = 0;  // Which copy of the moments the payload writes.

  // The step that is being applied; written before its payload is released, read by the lanes.
  AdamHyper adam{};
  float factor = 1;  // Unscale and clip.
  WeightUpdate update{};
  AnyMatrix weight;
  bool residual_due = false;
  AnyMatrix residual_gradient;
  ResidualStep residual_step;

  std::int64_t steps = 0;  // Committed updates of this weight.
  int live = 0;            // Which copy of the moments is committed.

 private:
  template <typename T>
  void advance_core(std::span<T> g, int from, int to, const AdamHyper& hyper, float scale,
                    std::span<T> d);

  Budget::Reservation held_;
  Buffer accumulator_, packed_, unpacked_, low_;
  std::array<Buffer, 2> m_, v_;
  Buffer roots_;  // Of a factored v.
};

}  // namespace sluiceway
