// One direction of the link between device and host: copies that take the time the link takes.
//
//   seconds(bytes) = latency_us * 1e-6 + bytes / (gbps * 1e9)
//
// Copies share a wire (wire.h): one after the other, each as long as that, less what the copy
// before it overslept, so sums are exact, whatever timers do. gbps = 0 means unthrottled, a latency
// remains. On the host device the thread that copies sleeps. On CUDA the copy is asynchronous as
// ever, and its stream then waits for the rest of the time (paced_copies.h); with neither rate nor
// latency it runs at the speed of the bus. Every byte is counted where it crosses.
//
// Thread safety: copy() and bytes() from any thread; two copies on one link share its rate.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>

#include "kernels/base/stream_ref.h"
#include "runtime/device/stream.h"

namespace sluiceway {

class PacedCopies;
class Wire;

enum class LinkDirection { kDeviceToHost, kHostToDevice };

class LinkCopy {
 public:
  struct Config {
    double gbps = 0;  // 1e9 bytes per second; 0: unthrottled.
    double latency_us = 0;
  };

  LinkCopy(DeviceId device, LinkDirection direction, Config config);  // InvalidArgument: rate.
  ~LinkCopy();
  LinkCopy(const LinkCopy&) = delete;
  LinkCopy& operator=(const LinkCopy&) = delete;

  // To be called from a task of the stream that `stream` refers to: on the host device it returns
  // when the bytes have crossed, on CUDA when the copy is enqueued.
  void copy(void* dst, const void* src, std::size_t bytes, StreamRef stream);

  // On the host device, for a copy that does more than copy: `work` makes the `bytes` that cross.
  // InvalidArgument on any other, whose bus copies and nothing else.
  void cross(std::size_t bytes, const std::function<void()>& work);

  std::uint64_t bytes() const noexcept { return bytes_.load(std::memory_order_relaxed); }

 private:
  DeviceId device_;
  LinkDirection direction_;
  std::atomic<std::uint64_t> bytes_{0};
  std::shared_ptr<Wire> wire_;          // Null: neither rate nor latency.
  std::unique_ptr<PacedCopies> paced_;  // Of CUDA, where there is a wire.
};

}  // namespace sluiceway
