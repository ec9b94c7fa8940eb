#include "runtime/device/device_memory.h"

#include <sys/resource.h>

#include <atomic>
#include <cerrno>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <string>
#include <system_error>

#include "kernels/base/check.h"
#include "kernels/cuda/load_kernels.h"
#include "runtime/device/cuda_backend.h"
#include "runtime/trace/warning.h"

namespace sluiceway {
namespace {

constexpr std::size_t kHostAlignment = 64;  // A cache line, and the widest vector register.

[[noreturn]] void refuse(const char* call, std::size_t bytes, int error_number) {
  throw OutOfMemory(concat(call, ": the system could not allocate ", format_bytes(bytes),
                           " of host memory: ", std::generic_category().message(error_number),
                           "; free memory, or lower the budget"));
}

std::string lock_limit() {
  rlimit limit{};
  if (getrlimit(RLIMIT_MEMLOCK, &limit) != 0) return "unknown";
  return limit.rlim_cur == RLIM_INFINITY ? "unlimited" : format_bytes(limit.rlim_cur);
}

void warn_of_pageable_memory(DeviceId device, std::size_t bytes, const std::string& refusal) {
  static std::atomic<bool> has_warned{false};
  if (has_warned.exchange(true)) return;
  warn(concat("allocate_pinned_bytes: could not page-lock ", format_bytes(bytes),
              " of host memory for ", to_string(device), ": ", refusal, "; RLIMIT_MEMLOCK is ",
              lock_limit(),
              "; copies from pageable memory are slower; raise the limit (ulimit -l), free memory, "
              "or lower budget.pinned"));
}

}  // namespace

int device_count() noexcept { return cuda::device_count(); }

void check_device(DeviceId device) {
  const DeviceGuard guard(device);
  cuda::load_kernels(device);
}

void* allocate_device_bytes(DeviceId device, std::size_t bytes) {
  if (bytes == 0) return nullptr;
  if (!device.is_host()) return cuda::allocate_bytes(device.ordinal(), bytes);
  void* pointer = nullptr;
  const int error_number = posix_memalign(&pointer, kHostAlignment, bytes);
  if (error_number != 0) refuse("allocate_device_bytes", bytes, error_number);
  return pointer;
}

void free_device_bytes(DeviceId device, void* pointer, std::size_t) noexcept {
  if (pointer == nullptr) return;
  if (device.is_host()) {
    std::free(pointer);
  } else {
    cuda::free_bytes(device.ordinal(), pointer);
  }
}

// Pages of their own return to the system when they are freed, whatever else malloc holds.
PinnedBytes allocate_pinned_bytes(DeviceId device, std::size_t bytes, Pages kind) {
  if (bytes == 0) return {};
  HostPages pages(bytes, kind);
  if (device.is_host()) return {pages.release(), false};
  const std::string refusal = cuda::lock_pages(device.ordinal(), pages.get(), pages.size());
  if (!refusal.empty()) warn_of_pageable_memory(device, pages.size(), refusal);
  return {pages.release(), refusal.empty()};
}

void free_pinned_bytes(PinnedBytes pinned, std::size_t bytes, Pages kind) noexcept {
  if (pinned.data == nullptr) return;
  if (pinned.locked) cuda::unlock_pages(pinned.data);
  unmap_pages(pinned.data, bytes, kind);
}

std::string page_lock_refusal(DeviceId device, std::size_t bytes) {
  if (device.is_host() || bytes == 0) return {};
  const HostPages pages(bytes, Pages::kOrdinary);
  std::string refusal = cuda::lock_pages(device.ordinal(), pages.get(), pages.size());
  if (refusal.empty()) cuda::unlock_pages(pages.get());
  return refusal;
}

void fill_device_bytes(DeviceId device, void* pointer, std::byte value, std::size_t bytes) {
  if (bytes == 0) return;
  if (device.is_host()) {
    std::memset(pointer, std::to_integer<int>(value), bytes);
  } else {
    cuda::fill_bytes(device.ordinal(), pointer, std::to_integer<int>(value), bytes);
  }
}

void copy_device_bytes(DeviceId device, void* dst, const void* src, std::size_t bytes) {
  if (bytes == 0) return;
  if (device.is_host()) {
    std::memcpy(dst, src, bytes);
  } else {
    cuda::copy_bytes(device.ordinal(), dst, src, bytes);
  }
}

}  // namespace sluiceway
