// The way of gradients off the device, for the thread of the d2h lane.
//
//   host device   the processor writes the copy, and scans and squares what it writes in the same
//                 pass, at the pace of the link
//   CUDA          a kernel does that, into memory of the device, and what it has written crosses
//                 behind it on a stream of its own, with the result; a gradient that has the type
//                 already is read alone, and crosses as it is
//
// On either device the lane has a thread of the host: it waits for the gradient to be there, for
// room, and for the copy, asleep, and whoever submits or completes a payload does not.
//
// Ownership:     on CUDA memory of the largest copy, of the device tier, where gradients are kept
//                in 16 bit, what its stream and the one that computes keep for themselves
//                (computing_stream.h), and a few words of the device and the pinned tier.
// Thread safety: leave() and cross() from the thread of the lane, the rest from the engine's
// caller. Errors:        OutOfMemory, with byte counts. CudaError: the device has failed.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>

#include "kernels/base/dtype.h"
#include "kernels/overflow_scan.h"
#include "runtime/device/event.h"
#include "runtime/device/stream.h"
#include "runtime/engine/computing_stream.h"
#include "runtime/engine/engine_lanes.h"
#include "runtime/engine/offload/chunk_plan.h"
#include "runtime/memory/budget.h"
#include "runtime/memory/buffer.h"
#include "runtime/memory/readback.h"

namespace sluiceway {

class GradientExit {
 public:
  // Of gradients that are kept as `gradient`, piece by piece.
  GradientExit(EngineLanes& lanes, ComputingStream& compute, const ChunkPlan& plan, DType gradient);

  // Bytes that one has of a tier; none on the host device.
  static std::uint64_t device_bytes(const ChunkPlan& plan, DType gradient, DeviceId device);
  static std::uint64_t pinned_bytes(DeviceId device);

  StreamRef compute() const noexcept { return compute_.ref(); }
  // What that stream has been given so far is done: a gradient that it made is there.
  Event reached() { return compute_.reached(); }

  // `from`, of `dtype`, into host memory as it is kept; of what was written. Behind `there`.
  ScanResult leave(const Event& there, std::span<const std::byte> from, DType dtype,
                   std::span<std::byte> into);
  // As it is.
  void cross(const Event& there, std::span<const std::byte> from, std::span<std::byte> into);

 private:
  EngineLanes& lanes_;
  ComputingStream& compute_;
  DType gradient_;
  Budget::Reservation stream_scratch_;
  Buffer rounded_;
  // None on the host device.
  std::optional<Readback<ScanResult>> scan_;
  std::optional<Stream> stream_;  // Ends before the memory that it works on goes.
};

}  // namespace sluiceway
