// Raw bytes of a device, and page-locked bytes of the host. Buffer (runtime/memory/buffer.h) owns
// them and asks the budget first; nothing else should call these.
//
// Bytes of the host device are ordinary memory, aligned to 64 bytes. Pinned bytes are whole pages
// of their own from mmap, in every build; where there is a CUDA device they are page-locked for it.
// Where the system refuses that (RLIMIT_MEMLOCK), they stay pageable and the process is warned
// once: the bus then copies through a buffer of the driver, slower, and the thread that asks for a
// copy waits for it.
//
// Ownership: freed by the matching call with what it gave and the same device, size and kind of
//            pages. Null and 0 bytes are fine.
// Errors:    OutOfMemory, with byte counts. Unavailable: a CUDA device in a build or on a machine
//            without CUDA. InvalidArgument: no CUDA device has this ordinal.
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

int device_count() noexcept;  // CUDA devices; 0 in a build without CUDA.
// Throws as above unless the device can be used. Loads our kernels onto it the first time, so that
// no step meets a first launch, which may wait until the device is idle.
void check_device(DeviceId device);

void* allocate_device_bytes(DeviceId device, std::size_t bytes);
void free_device_bytes(DeviceId device, void* pointer, std::size_t bytes) noexcept;

struct PinnedBytes {
  void* data = nullptr;
  bool locked = false;  // For a CUDA device. The host device locks nothing.
};

// Contents start as zero. How many bytes became huge pages: huge_bytes() of host_pages.h.
PinnedBytes allocate_pinned_bytes(DeviceId device, std::size_t bytes,
                                  Pages kind = Pages::kOrdinary);
void free_pinned_bytes(PinnedBytes pinned, std::size_t bytes,
                       Pages kind = Pages::kOrdinary) noexcept;

// What the system says where it does not page-lock so many bytes for `device`; empty where it does.
// It is tried, and undone. The host device locks nothing.
std::string page_lock_refusal(DeviceId device, std::size_t bytes);

// Both return when it is done. `src` and `dst` of a copy may be host or device memory.
void fill_device_bytes(DeviceId device, void* pointer, std::byte value, std::size_t bytes);
void copy_device_bytes(DeviceId device, void* dst, const void* src, std::size_t bytes);

}  // namespace sluiceway
