// One direction of the link between device and host: copies that take the time the link takes.
//
//   seconds(bytes) = latency_us * 1e-6 + bytes / (gbps * 1e9)
//
// Copies share a wire (wire.h): they run one after another, each as long as that, minus the time
// that the previous copy overslept, so sums are exact, whatever timers do. gbps = 0 means
// unthrottled; a latency remains. A link with a rate or a latency is paced: the copying thread
// sleeps until the copy is due, on CUDA after the bus has moved it. With neither, a copy on CUDA is
// asynchronous and runs at the speed of the bus. Each link counts the bytes that it carries.
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

class Wire;

enum class LinkDirection { kDeviceToHost, kHostToDevice };

class LinkCopy {
 public:
  struct Config {
    double gbps = 0;  // 1e9 bytes per second; 0: unthrottled.
    double latency_us = 0;

    bool is_paced() const noexcept { return gbps != 0 || latency_us != 0; }
  };

  // Throws InvalidArgument for a bad rate.
  LinkCopy(DeviceId device, LinkDirection direction, Config config);
  ~LinkCopy();
  LinkCopy(const LinkCopy&) = delete;
  LinkCopy& operator=(const LinkCopy&) = delete;

  // Call this in a task of the stream that `stream` refers to. Returns when the bytes have crossed;
  // on CUDA over a link that is not paced, when the copy is enqueued. Over a paced link the task
  // needs a thread that may sleep (Stream::Options::own_thread).
  void copy(void* dst, const void* src, std::size_t bytes, StreamRef stream);

  // For a transfer on the host device that does more than copy: `work` produces the `bytes` that
  // cross. Throws InvalidArgument on other devices, whose bus can only copy.
  void cross(std::size_t bytes, const std::function<void()>& work);

  bool is_paced() const noexcept { return wire_ != nullptr; }
  std::uint64_t bytes() const noexcept { return bytes_.load(std::memory_order_relaxed); }

 private:
  void cross_paced(std::size_t bytes, const std::function<void()>& work);

  DeviceId device_;
  LinkDirection direction_;
  std::atomic<std::uint64_t> bytes_{0};
  std::unique_ptr<Wire> wire_;  // Null: not paced.
};

}  // namespace sluiceway
