// Where a core is on its way: summed on the device, packed, staged on the host, and back again.
//
//   core       core   f32    device   sum of the compressed micro-batches
//   packed     core   wire   device   the sum as it crosses (f32 wire: unused)
//   gradient   core   wire   pinned   as it arrived on the host, whole or as a flag for zeros
//   direction  core   wire   pinned   what AdamW on the core made of it
//   arrived    core   wire   device   the direction, ready to be applied
//   unpacked   core   f32    device   the direction, where `arrived` is not a matrix (int8) or
//                                     nothing crosses (CoreTier::kDevice)
//
// Thread safety: a payload's lane has it, or no lane; the executor hands it on.
// Errors:        OutOfMemory, with what it was for; nothing was changed.
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
  // Of the sum. `result` is memory that kernels of the device write to, of pack() too.
  void scan(ScanResult* result, StreamRef stream) const;
  bool packs() const noexcept { return packed_.size() != 0; }
  void pack(ScanResult* result, StreamRef stream);  // Makes outgoing(), and scans on the way.
  // What crosses to the host. A core of zeros crosses as a flag, one byte of it; that it is zero
  // the caller has from the scan, and says so to the host's side by arrive_as_zero().
  std::span<const std::byte> outgoing(bool zero) const noexcept;
  AnyMatrix direction_on_device(StreamRef stream);  // Unpacks what arrived, where it must be.

  // ---- Host ----
  std::span<std::byte> gradient() const noexcept { return {gradient_.data(), gradient_.size()}; }
  std::span<const std::byte> direction() const noexcept {
    return {direction_.data(), direction_.size()};
  }
  std::span<std::byte> arrived() const noexcept { return {arrived_.data(), arrived_.size()}; }

  void arrive_as_zero() noexcept;  // The flag has come: gradient() is a core of zeros.
  // AdamW on the core, from what arrived to the direction that leaves; on the device itself with
  // CoreTier::kDevice. `scratch` has WeightPlan::host_scratch_bytes.
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
