// Trains a weight with the part of the gradient that its codec drops, on the device, with m + n
// numbers of state.
//
//   R <- G - P S Q^T                                        in place of G
//   v_r <- b2 v_r + (1 - b2) mean_j R^2, v_c likewise       V = v_r v_c / mean(v_r)   [Adafactor]
//   U = R / (sqrt(V / (1 - b2^t)) + eps)
//   W <- decay W - lr U / max(1, rms(U) / max_rms)          the clip of [Adafactor] section 6
//
// kSign uses U = sign(R) and has no state. There is no first moment and no link traffic. The update
// is as large as AdamW's, element by element, and takes AdamW's learning rate. For that very reason
// a residual that is only rounding error (as when the core captures the whole rank of a gradient)
// is skipped: 1e-5 of the core's norm in f32, half a unit in the last place of G in 16 bits.
//
// All decisions are made on the gradient's device: apply() enqueues kernels that pass a verdict to
// each other, and waits for nothing. trained() reads the verdict, and waits.
//
// Ownership: owns v_r, v_c and the verdict, reserved on the device tier and in the device's memory.
//            apply() consumes G.
// Numerics:  see kernels/residual.h; R is rounded to the type of G once.
// Errors:    OutOfMemory in the constructor; InvalidArgument for a wrong shape, with nothing
//            changed.
// Cost:      codec.leave_residual() once (reads and writes G); then R is read twice, or once for
//            kSign or without a clip; W is read and written once, S is read once more.
// Source:    docs/algorithm.md section 3; [Adafactor] Shazeer and Stern, arXiv 1804.04235.
#pragma once

#include <cstdint>
#include <span>
#include <string_view>

#include "compress/gradient_codec.h"
#include "kernels/residual_verdict.h"
#include "runtime/memory/buffer.h"

namespace sluiceway {

enum class ResidualKind : std::uint8_t { kNone, kFactored, kSign };
ResidualKind parse_residual(std::string_view name);  // "none", "factored", "sign"
std::string_view to_string(ResidualKind kind) noexcept;

struct ResidualStep {
  double lr = 0;
  double beta2 = 0;
  double eps = 0;
  float factor = 1;     // Unscales the gradient; does not include clipping by the global norm.
  double max_rms = 1;   // Infinity: the RMS is not measured, which saves a read of R.
  WeightUpdate update;  // All but alpha.
  // Receives overflow_scan() of what the codec leaves, which is g where it has no core; null: no
  // scan.
  ScanResult* scan = nullptr;
};

class GradientResidual {
 public:
  GradientResidual(ResidualKind kind, std::int64_t m, std::int64_t n, DeviceId device,
                   Budget& budget, std::string_view weight_name);

  // `s` is the core of `g`, or empty for a codec without one. If the residual is not finite or only
  // rounding error, nothing changes except g.
  void apply(const GradientCodec& codec, const AnyMatrix& g, MatrixView<float> s,
             const AnyMatrix& w, MatrixView<std::uint16_t> low, const ResidualStep& step,
             std::span<float> scratch, StreamRef stream);

  ResidualKind kind() const noexcept { return kind_; }
  // Tells whether the last apply() changed its weight. Waits for `stream`, on which apply() ran.
  bool trained(StreamRef stream) const;

  // ---- State; call these only while no enqueued work uses it ----
  std::int64_t steps() const { return verdict().steps; }  // How often the moments were advanced.
  // v_r, then v_c, in memory of the device; empty for kSign.
  std::span<const float> moments() const noexcept { return moments_.as<const float>(); }
  void load(std::int64_t steps, std::span<const float> moments);  // From host memory.

  static std::uint64_t bytes(ResidualKind kind, std::int64_t m, std::int64_t n) noexcept;

 private:
  ResidualVerdict verdict() const;

  ResidualKind kind_;
  std::int64_t m_, n_;
  DeviceId device_;
  Buffer moments_;  // Row moments, then column moments; kFactored only.
  Buffer means_;    // Means of the current gradient, then the roots of the moments.
  Buffer verdict_;
};

}  // namespace sluiceway
