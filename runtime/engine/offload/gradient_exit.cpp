#include "runtime/engine/offload/gradient_exit.h"

#include <algorithm>
#include <exception>

#include "kernels/base/view.h"
#include "kernels/gradient_copy.h"
#include "runtime/device/device_memory.h"

namespace sluiceway {
namespace {

constexpr const char* kPurpose = "gradients on their way out";

// Size of the largest piece in its stored type; an f32 gradient is never rounded.
std::uint64_t rounded_bytes(const ChunkPlan& plan, DType gradient) {
  if (gradient == DType::kF32) return 0;
  std::int64_t most = 0;
  for (const PlannedChunk& chunk : plan.chunks()) {
    for (const ChunkPiece& piece : chunk.pieces) most = std::max(most, piece.elems);
  }
  return static_cast<std::uint64_t>(most) * size_bytes(gradient);
}

// Waits also where an error ends a copy, since the owners of both memories may then reuse them.
class WaitsFor {
 public:
  explicit WaitsFor(Stream& stream) noexcept : stream_(stream) {}
  WaitsFor(const WaitsFor&) = delete;
  WaitsFor& operator=(const WaitsFor&) = delete;
  ~WaitsFor() {
    if (std::uncaught_exceptions() == before_) return;
    try {
      stream_.synchronize();
    } catch (...) {  // A failed device runs nothing any more.
    }
  }

 private:
  Stream& stream_;
  int before_ = std::uncaught_exceptions();
};

AnyMatrix as_row(std::span<const std::byte> bytes, DType dtype) {
  const auto elems = static_cast<std::int64_t>(bytes.size() / size_bytes(dtype));
  // A view has no const form; this one is only read.
  return {const_cast<std::byte*>(bytes.data()), 1, elems, elems, dtype};
}

}  // namespace

GradientExit::GradientExit(EngineLanes& lanes, ComputingStream& compute, const ChunkPlan& plan,
                           DType gradient)
    : lanes_(lanes), compute_(compute), gradient_(gradient) {
  const DeviceId device = lanes.device();
  if (device.is_host()) return;
  stream_scratch_ = lanes.budget().reserve(Tier::kDevice, engine_scratch_bytes(device),
                                           "scratch of the computing streams");
  const auto most = static_cast<std::size_t>(rounded_bytes(plan, gradient));
  if (most > 0) rounded_ = Buffer(lanes.budget(), Tier::kDevice, device, most, kPurpose);
  scan_.emplace(lanes.budget(), device, 1, kPurpose);
  stream_.emplace(Stream::owned(device, {"sw-leave"}));
  prepare_own_stream(*stream_);
}

std::uint64_t GradientExit::device_bytes(const ChunkPlan& plan, DType gradient, DeviceId device) {
  if (device.is_host()) return 0;
  return rounded_bytes(plan, gradient) + engine_scratch_bytes(device) +
         Readback<ScanResult>::reserved(Tier::kDevice, device, 1);
}

std::uint64_t GradientExit::pinned_bytes(DeviceId device) {
  return Readback<ScanResult>::reserved(Tier::kPinned, device, 1);
}

ScanResult GradientExit::leave(const Event& there, std::span<const std::byte> from, DType dtype,
                               std::span<std::byte> into) {
  if (!stream_) {
    ScanResult scan;
    lanes_.d2h().cross(into.size(),
                       [&] { scan = cpu::gradient_copy(from, dtype, into, gradient_); });
    return scan;
  }
  const WaitsFor whatever_happens(*stream_);
  stream_->wait(there);
  stream_->enqueue([&](StreamRef stream) {
    std::span<const std::byte> outgoing = from;
    if (dtype == gradient_) {
      overflow_scan(as_row(from, dtype), scan_->slot(0), stream);
    } else {
      const std::span<std::byte> rounded = rounded_.as<std::byte>().first(into.size());
      gradient_copy(from, dtype, rounded, gradient_, scan_->slot(0), stream);
      outgoing = rounded;
    }
    lanes_.d2h().copy(into.data(), outgoing.data(), into.size(), stream);
  });
  scan_->fetch(*stream_);
  stream_->synchronize();
  return scan_->get(0);
}

void GradientExit::cross(const Event& there, std::span<const std::byte> from,
                         std::span<std::byte> into) {
  const auto copy = [&](StreamRef stream) {
    lanes_.d2h().copy(into.data(), from.data(), from.size(), stream);
  };
  if (!stream_) return copy(StreamRef::host());
  const WaitsFor whatever_happens(*stream_);
  stream_->wait(there);
  stream_->enqueue(copy);
  stream_->synchronize();
}

}  // namespace sluiceway
