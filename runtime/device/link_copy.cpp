#include "runtime/device/link_copy.h"

#include <cmath>
#include <cstring>
#include <string>

#include "kernels/base/check.h"
#include "runtime/device/cuda_backend.h"
#include "runtime/device/device_memory.h"
#include "runtime/device/wire.h"

namespace sluiceway {
namespace {

constexpr double kMostLatencyUs = 1e9;

void copy_now(void* dst, const void* src, std::size_t bytes) noexcept {
  if (bytes > 0) std::memcpy(dst, src, bytes);
}

}  // namespace

LinkCopy::LinkCopy(DeviceId device, LinkDirection direction, Config config)
    : device_(device), direction_(direction) {
  SLUICEWAY_CHECK(std::isfinite(config.gbps) && config.gbps >= 0, "link_copy: rate is ",
                  config.gbps, " GB/s, expected 0 (unthrottled) or more");
  SLUICEWAY_CHECK(std::isfinite(config.latency_us) && config.latency_us >= 0 &&
                      config.latency_us <= kMostLatencyUs,
                  "link_copy: latency is ", config.latency_us, " us, expected 0 to ",
                  kMostLatencyUs);
  check_device(device);
  if (config.is_paced()) wire_ = std::make_unique<Wire>(config.gbps, config.latency_us);
}

LinkCopy::~LinkCopy() = default;

void LinkCopy::copy(void* dst, const void* src, std::size_t bytes, StreamRef stream) {
  SLUICEWAY_CHECK(stream.device() == device_, "link_copy: the stream is on ",
                  to_string(stream.device()), ", expected ", to_string(device_),
                  ", the device of the link");
  SLUICEWAY_CHECK(bytes == 0 || (dst != nullptr && src != nullptr), "link_copy: ", bytes,
                  " bytes from or to a null pointer, expected two addresses");
  // The copy takes the wire once the stream has reached it.
  if (wire_ != nullptr) wait_for(stream);
  cross_paced(bytes, [&] {
    if (device_.is_host()) return copy_now(dst, src, bytes);
    cuda::copy_bytes_async(stream, dst, src, bytes, direction_);
    if (wire_ != nullptr) wait_for(stream);
  });
}

void LinkCopy::cross(std::size_t bytes, const std::function<void()>& work) {
  SLUICEWAY_CHECK(device_.is_host(), "link_copy: cross() was called on a link of ",
                  to_string(device_), ", but is for the host device only; call copy() instead");
  cross_paced(bytes, work);
}

void LinkCopy::cross_paced(std::size_t bytes, const std::function<void()>& work) {
  if (wire_ == nullptr) {
    work();
  } else {
    const WireSchedule::Slot slot = wire_->take(bytes);
    work();  // Takes longer if processor or bus copy more slowly than this link.
    if (Wire::sleep_until_due(slot)) wire_->woke(slot);
  }
  bytes_.fetch_add(bytes, std::memory_order_relaxed);
}

}  // namespace sluiceway
