#include "runtime/device/device_memory.h"

#include <sys/mman.h>

#include <cerrno>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <system_error>
#include <utility>

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

// Pages of their own go back to the system when they are freed, whatever else malloc holds.
class MappedPages {
 public:
  explicit MappedPages(std::size_t bytes) : bytes_(round_up(bytes, kPageBytes)) {
    if (bytes > SIZE_MAX - kPageBytes) refuse("allocate_pinned_bytes", bytes, ENOMEM);
    pages_ = mmap(nullptr, bytes_, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (pages_ == MAP_FAILED) refuse("allocate_pinned_bytes", bytes, errno);
  }
  MappedPages(const MappedPages&) = delete;
  MappedPages& operator=(const MappedPages&) = delete;
  ~MappedPages() {
    if (pages_ != nullptr) munmap(pages_, bytes_);
  }

  void* get() const noexcept { return pages_; }
  std::size_t size() const noexcept { return bytes_; }
  void* release() noexcept { return std::exchange(pages_, nullptr); }

 private:
  std::size_t bytes_;
  void* pages_ = nullptr;
};

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

void* allocate_pinned_bytes(DeviceId device, std::size_t bytes) {
  if (bytes == 0) return nullptr;
  MappedPages pages(bytes);
  if (!device.is_host()) cuda::lock_pages(device.ordinal(), pages.get(), pages.size());
  return pages.release();
}

void free_pinned_bytes(DeviceId device, void* pointer, std::size_t bytes) noexcept {
  if (pointer == nullptr) return;
  if (!device.is_host()) cuda::unlock_pages(pointer);
  munmap(pointer, round_up(bytes, kPageBytes));
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
