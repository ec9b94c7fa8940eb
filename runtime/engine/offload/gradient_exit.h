// Copies gradients off the device, for the thread of the d2h lane.
//
//   host device   the processor writes the copy, and scans and squares it in the same pass, at the
//                 pace of the link
//   CUDA          a kernel does that, into device memory; a separate stream then copies its output
//                 and the result to the host. A gradient that has the right type already is only
//                 read, and crosses unchanged
//
// On either device the lane has a host thread. It sleeps until the gradient is there, until there
// is room, and until the copy is done; threads that submit or complete a payload do not wait.
//
// Ownership:     on CUDA, device memory of the largest copy where gradients are kept in 16 bit, the
//                scratch of its stream and of the computing one (computing_stream.h), and a few
//                words on the device and the pinned tier.
// Thread safety: leave() and cross() from the thread of the lane, the rest from the engine's
//                caller.
// Errors:        OutOfMemory, with byte counts. CudaError: the device has failed.
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
  // For gradients stored as `gradient`, copied piece by piece.
  GradientExit(EngineLanes& lanes, ComputingStream& compute, const ChunkPlan& plan, DType gradient);

  // Returns the bytes that an object takes of a tier; 0 on the host device.
  static std::uint64_t device_bytes(const ChunkPlan& plan, DType gradient, DeviceId device);
  static std::uint64_t pinned_bytes(DeviceId device);

  StreamRef compute() const noexcept { return compute_.ref(); }
  // Completes when all work enqueued so far on the computing stream is done, so its gradients are
  // there.
  Event reached() { return compute_.reached(); }

  // Converts `from`, of `dtype`, into host memory in the stored type, after `there`. Returns the
  // scan of the output.
  ScanResult leave(const Event& there, std::span<const std::byte> from, DType dtype,
                   std::span<std::byte> into);
  // Copies without conversion, after `there`.
  void cross(const Event& there, std::span<const std::byte> from, std::span<std::byte> into);

 private:
  EngineLanes& lanes_;
  ComputingStream& compute_;
  DType gradient_;
  Budget::Reservation stream_scratch_;
  Buffer rounded_;
  // Empty on the host device.
  std::optional<Readback<ScanResult>> scan_;
  std::optional<Stream> stream_;  // Ends before the memory that it uses is freed.
};

}  // namespace sluiceway
