#include "runtime/device/device_memory.h"

#include <cerrno>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <system_error>

#include "kernels/base/check.h"
#include "runtime/device/cuda_backend.h"

namespace sluiceway {
namespace {

constexpr std::size_t kHostAlignment = 64;  // A cache line, and the widest vector register.

[[noreturn]] void refuse(const char* call, std::size_t bytes, int error_number) {
  throw OutOfMemory(concat(call, ": the system refused ", format_bytes(bytes),
                           " of host memory: ", std::generic_category().message(error_number),
                           "; free memory, or lower the budget"));
}

}  // namespace

int device_count() noexcept { return cuda::device_count(); }

void check_device(DeviceId device) { const DeviceGuard guard(device); }

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

// Pages of their own go back to the system when they are freed, whatever else malloc holds.
void* allocate_pinned_bytes(DeviceId device, std::size_t bytes, Pages kind) {
  if (bytes == 0) return nullptr;
  HostPages pages(bytes, kind);
  if (!device.is_host()) cuda::lock_pages(device.ordinal(), pages.get(), pages.size());
  return pages.release();
}

void free_pinned_bytes(DeviceId device, void* pointer, std::size_t bytes, Pages kind) noexcept {
  if (pointer == nullptr) return;
  if (!device.is_host()) cuda::unlock_pages(pointer);
  unmap_pages(pointer, bytes, kind);
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
