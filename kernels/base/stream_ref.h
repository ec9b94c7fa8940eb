// A borrowed stream: the handle that a kernel needs to enqueue work.
//
// On CUDA it is a cudaStream_t of that device, null for its default stream. On the host device it
// holds nothing: a host kernel runs on the thread that calls it, and that thread belongs to a
// Stream (runtime/device/stream.h). Like DeviceId, it has no default.
#pragma once

#include "kernels/base/device_id.h"

namespace sluiceway {

class StreamRef {
 public:
  static constexpr StreamRef host() noexcept { return {DeviceId::host(), nullptr}; }
  static constexpr StreamRef cuda(int ordinal, void* native) {
    return {DeviceId::cuda(ordinal), native};
  }

  constexpr DeviceId device() const noexcept { return device_; }
  constexpr bool is_host() const noexcept { return device_.is_host(); }
  constexpr void* native() const noexcept { return native_; }  // The cudaStream_t.
  friend constexpr bool operator==(StreamRef, StreamRef) = default;

 private:
  constexpr StreamRef(DeviceId device, void* native) noexcept : device_(device), native_(native) {}
  DeviceId device_;
  void* native_;
};

}  // namespace sluiceway
