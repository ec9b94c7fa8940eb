// The buffers that a core passes through: summed on the device, packed, staged on the host, and
// back.
//
//   core       core   f32    device   sum of the compressed micro-batches
//   packed     core   wire   device   the sum in wire format (f32 wire: unused)
//   gradient   core   wire   pinned   the sum on the host, whole or as a flag for zeros
//   direction  core   wire   pinned   the result of AdamW on the core
//   arrived    core   wire   device   the direction, ready to be applied
//   unpacked   core   f32    device   the direction, where `arrived` is not a matrix (int8) or
//                                     nothing crosses (CoreTier::kDevice)
//
// Thread safety: owned by the lane of its payload, or by no lane; the executor hands it on.
// Errors:        OutOfMemory, naming the purpose; nothing was changed.
#pragma once

#include <cstddef>
#include <span>

#include "kernels/adam.h"
#include "kernels/overflow_scan.h"
#include "runtime/engine/subspace/core_moments.h"
#include "runtime/engine/subspace/weight_plan.h"
#include "runtime/memory/buffer.h"

namespace sluiceway {

class CoreStaging {
 public:
  CoreStaging(const WeightSpec& spec, const WeightPlan& plan, DeviceId device, Budget& budget);

  // ---- Device ----
  MatrixView<float> core() const noexcept;
  // Scans the sum. `result` is memory that kernels of the device can write, also for pack().
  void scan(ScanResult* result, StreamRef stream) const;
  bool packs() const noexcept { return packed_.size() != 0; }
  void pack(ScanResult* result, StreamRef stream);  // Fills outgoing(), and scans the sum.
  // Returns the bytes that cross to the host. A core of zeros crosses as a flag of one byte. The
  // caller learns from the scan that it is zero, and calls arrive_as_zero() on the host's side.
  std::span<const std::byte> outgoing(bool zero) const noexcept;
  AnyMatrix direction_on_device(StreamRef stream);  // Unpacks `arrived` if necessary.

  // ---- Host ----
  std::span<std::byte> gradient() const noexcept { return {gradient_.data(), gradient_.size()}; }
  std::span<const std::byte> direction() const noexcept {
    return {direction_.data(), direction_.size()};
  }
  std::span<std::byte> arrived() const noexcept { return {arrived_.data(), arrived_.size()}; }

  void arrive_as_zero() noexcept;  // Makes gradient() a core of zeros; call when the flag arrives.
  // Runs AdamW on the core, from the arrived gradient to the outgoing direction; with
  // CoreTier::kDevice, on the device. `scratch` has WeightPlan::host_scratch_bytes.
  void update(CoreMoments& moments, int from, int to, const AdamHyper& hyper, float scale,
              std::span<float> scratch, StreamRef stream);

 private:
  std::size_t elems() const noexcept { return static_cast<std::size_t>(shape_.elems()); }

  CoreShape shape_;
  WireFormat wire_;
  CoreTier tier_;
  Buffer core_, packed_, gradient_, direction_, arrived_, unpacked_;
};

}  // namespace sluiceway
