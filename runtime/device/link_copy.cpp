#include "runtime/device/link_copy.h"

#include <algorithm>
#include <cerrno>
#include <cmath>
#include <cstring>
#include <ctime>

#include "kernels/base/check.h"
#include "runtime/device/cuda_backend.h"
#include "runtime/device/device_memory.h"
#include "runtime/device/wire_schedule.h"

namespace sluiceway {
namespace {

constexpr std::int64_t kNsPerS = 1'000'000'000;

constexpr double kMostNs = 1e15;  // Twelve days: no sum of due times overflows.
constexpr double kMostLatencyUs = 1e9;

std::int64_t monotonic_ns() noexcept {
  timespec now{};
  clock_gettime(CLOCK_MONOTONIC, &now);
  return now.tv_sec * kNsPerS + now.tv_nsec;
}

void sleep_until(std::int64_t due_ns) noexcept {
  const timespec due{due_ns / kNsPerS, due_ns % kNsPerS};
  while (clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &due, nullptr) == EINTR) {
  }
}

double wire_seconds(std::size_t bytes, const LinkCopy::Config& config) noexcept {
  return config.gbps > 0 ? static_cast<double>(bytes) / (config.gbps * 1e9) : 0;
}

void copy_now(void* dst, const void* src, std::size_t bytes) noexcept {
  if (bytes > 0) std::memcpy(dst, src, bytes);
}

}  // namespace

struct LinkCopy::Bucket {
  explicit Bucket(const Config& link) : config(link) {}

  WireSchedule::Slot take(std::size_t bytes) {
    const double wire_ns = std::min(wire_seconds(bytes, config) * 1e9, kMostNs);
    return schedule.take(monotonic_ns(), std::llround(wire_ns),
                         std::llround(config.latency_us * 1e3));
  }

  void finish(const WireSchedule::Slot& slot) {
    if (monotonic_ns() >= slot.due_ns) return;  // The processor copies slower than this link.
    sleep_until(slot.due_ns);
    schedule.woke(slot, monotonic_ns());
  }

  const Config config;
  WireSchedule schedule;
};

LinkCopy::LinkCopy(DeviceId device, LinkDirection direction, Config config)
    : device_(device), direction_(direction) {
  SLUICEWAY_CHECK(std::isfinite(config.gbps) && config.gbps >= 0, "link_copy: rate is ",
                  config.gbps, " GB/s, expected 0 (unthrottled) or more");
  SLUICEWAY_CHECK(std::isfinite(config.latency_us) && config.latency_us >= 0 &&
                      config.latency_us <= kMostLatencyUs,
                  "link_copy: latency is ", config.latency_us, " us, expected 0 to ",
                  kMostLatencyUs);
  SLUICEWAY_CHECK(device.is_host() || (config.gbps == 0 && config.latency_us == 0),
                  "link_copy: rate is ", config.gbps, " GB/s and latency ", config.latency_us,
                  " us on ", to_string(device),
                  ", expected 0: only the host device throttles its link");
  check_device(device);
  if (config.gbps > 0 || config.latency_us > 0) bucket_ = std::make_unique<Bucket>(config);
}

LinkCopy::~LinkCopy() = default;

void LinkCopy::copy(void* dst, const void* src, std::size_t bytes, StreamRef stream) {
  SLUICEWAY_CHECK(stream.device() == device_, "link_copy: stream of ", to_string(stream.device()),
                  ", expected ", to_string(device_), ", as the link");
  SLUICEWAY_CHECK(bytes == 0 || (dst != nullptr && src != nullptr), "link_copy: null pointer for ",
                  bytes, " bytes");
  if (device_.is_host()) return cross(bytes, [&] { copy_now(dst, src, bytes); });
  cuda::copy_bytes_async(stream, dst, src, bytes, direction_);
  bytes_.fetch_add(bytes, std::memory_order_relaxed);
}

void LinkCopy::cross(std::size_t bytes, const std::function<void()>& work) {
  SLUICEWAY_CHECK(device_.is_host(), "link_copy: work on the link of ", to_string(device_),
                  ", expected the host device; copy() what the work has made");
  if (bucket_ == nullptr) {
    work();
  } else {
    const WireSchedule::Slot slot = bucket_->take(bytes);
    work();
    bucket_->finish(slot);
  }
  bytes_.fetch_add(bytes, std::memory_order_relaxed);
}

}  // namespace sluiceway
