// The cost of one compressed weight: bytes on each tier, and bytes per step over the link.
//
// The same numbers size the buffers (core_staging.h, core_moments.h) and answer `sluiceway plan`.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>

#include "compress/gradient_codec.h"
#include "compress/gradient_residual.h"
#include "kernels/base/device_id.h"
#include "kernels/base/dtype.h"
#include "kernels/decompress.h"
#include "kernels/wire.h"

namespace sluiceway {

// The place where AdamW on the core runs.
enum class CoreTier : std::uint8_t { kHost, kDevice };

// Storage of the second moment of a core: one per element, or the means of rows and columns.
enum class SecondMoment : std::uint8_t { kFull, kFactored };

struct WeightSpec {
  std::string name;       // Unique; its stable hash keys every random draw.
  std::int64_t rows = 0;  // m
  std::int64_t cols = 0;  // n
  DType dtype = DType::kF32;
  CodecConfig codec;
  WireFormat wire = WireFormat::kBF16;
  CoreTier tier = CoreTier::kHost;
  Rounding rounding = Rounding::kNearest;  // kNearest for f32 weights only.
  ResidualKind residual = ResidualKind::kNone;
  SecondMoment second_moment = SecondMoment::kFull;
};

// Floats in the second moment of a core; a factored one needs as many again for scratch.
std::int64_t second_moment_elems(SecondMoment kind, const CoreShape& core) noexcept;

struct WeightPlan {
  CoreShape core;
  std::uint64_t d2h_bytes = 0;  // Per step; 0 with CoreTier::kDevice.
  std::uint64_t h2d_bytes = 0;
  std::uint64_t projector_bytes = 0;  // Device; reserved by the codec.
  std::uint64_t device_bytes = 0;     // Accumulator, both wire buffers, low bits, moments if on the
                                      // device, state of the residual, and results of kernels.
  std::uint64_t scan_bytes = 0;       // Device: its part of the engine's scans of gradients.
  std::uint64_t held_bytes = 0;       // Device: the gradient, while a residual waits for step().
  std::uint64_t scratch_bytes = 0;    // Device; two of the largest serve all weights.
  std::uint64_t host_bytes = 0;       // Moments, twice while speculative; roots, if factored.
  std::uint64_t host_scratch_bytes = 0;  // Host; the largest serves all weights.
  std::uint64_t pinned_bytes = 0;        // Gradient and direction in wire format, in whole pages.
  // Device; where codecs are refreshed, the largest replaces one of the two scratch buffers.
  std::uint64_t refresh_scratch_bytes = 0;
  std::uint64_t fit_bytes = 0;  // Device, by torch, not in the budget; weights fit one by one.
};

// InvalidArgument: no elements, or a rounding that the weight's dtype does not have.
WeightPlan plan_weight(const WeightSpec& spec, bool speculative, DeviceId device);

// Device: twice the largest scratch of all weights, or one of them and the largest of a refresh,
// plus the scratch of streams on a CUDA device.
std::uint64_t shared_bytes(std::span<const WeightPlan> plans, bool refreshed, DeviceId device);

// Pinned: the host copy of the scans of `weights` gradients.
std::uint64_t shared_pinned_bytes(std::size_t weights, DeviceId device) noexcept;

CoreTier parse_core_tier(std::string_view name);          // "host", "device"
SecondMoment parse_second_moment(std::string_view name);  // "full", "factored"
std::string_view to_string(SecondMoment kind) noexcept;
WireFormat parse_wire(std::string_view name);                 // "fp32", "bf16", "int8"
Rounding parse_rounding(std::string_view name, DType dtype);  // "auto", "stochastic", "residual"

}  // namespace sluiceway
