// Raw bytes of a device, and page-locked bytes of the host. Buffer (runtime/memory/buffer.h) owns
// them and asks the budget first; other code should not call these functions.
//
// Bytes of the host device are ordinary memory, aligned to 64 bytes. Pinned bytes are whole pages
// from mmap, in every build; for a CUDA device they are page-locked. If the system does not allow
// that (RLIMIT_MEMLOCK), they stay pageable and the process is warned once: copies then go through
// a buffer of the driver, which is slower, and the thread that starts a copy waits for it.
//
// Ownership: free bytes with the matching function, and pass the pointer that it returned with the
//            same device, size and kind of pages. Null and 0 bytes are fine.
// Errors:    OutOfMemory, with byte counts. Unavailable for a CUDA device in a build or on a
//            machine without CUDA. InvalidArgument if no CUDA device has this ordinal.
#pragma once

#include <concepts>
#include <cstddef>
#include <string>
#include <type_traits>

#include "runtime/device/host_pages.h"
#include "runtime/device/stream.h"

namespace sluiceway {

template <std::integral T>
constexpr T round_up(T count, std::type_identity_t<T> unit) noexcept {
  return (count + unit - 1) / unit * unit;
}

int device_count() noexcept;  // Number of CUDA devices; 0 in a build without CUDA.
// Throws as above unless the device can be used. The first call loads our kernels onto it, so that
// no step contains a first launch, which may wait until the device is idle.
void check_device(DeviceId device);

void* allocate_device_bytes(DeviceId device, std::size_t bytes);
void free_device_bytes(DeviceId device, void* pointer, std::size_t bytes) noexcept;

struct PinnedBytes {
  void* data = nullptr;
  bool locked = false;  // Page-locked for a CUDA device. The host device locks nothing.
};

// Contents start as zero. huge_bytes() of host_pages.h tells how many bytes got huge pages.
PinnedBytes allocate_pinned_bytes(DeviceId device, std::size_t bytes,
                                  Pages kind = Pages::kOrdinary);
void free_pinned_bytes(PinnedBytes pinned, std::size_t bytes,
                       Pages kind = Pages::kOrdinary) noexcept;

// Tries to page-lock so many bytes for `device`, and undoes it. Returns the system's message if
// that fails, otherwise an empty string. The host device locks nothing.
std::string page_lock_refusal(DeviceId device, std::size_t bytes);

// Both return when done. `src` and `dst` of a copy may be host or device memory.
void fill_device_bytes(DeviceId device, void* pointer, std::byte value, std::size_t bytes);
void copy_device_bytes(DeviceId device, void* dst, const void* src, std::size_t bytes);

}  // namespace sluiceway
