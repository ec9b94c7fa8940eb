// The CUDA half of the device layer. cuda/ implements it; the stubs in no_cuda/ throw Unavailable
// and count no devices. Only the other sources of this folder call it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>

#include "runtime/device/link_copy.h"
#include "runtime/device/stream_backend.h"
#include "runtime/device/time_mark.h"

namespace sluiceway::cuda {

int device_count() noexcept;
std::unique_ptr<StreamBackend> make_owned_stream(DeviceId device, const Stream::Options& options);
std::unique_ptr<StreamBackend> make_borrowed_stream(StreamRef stream);
void wait_for(StreamRef stream);
void enqueue_wait(StreamRef stream, const Event& event);
std::unique_ptr<TimeMark> make_time_mark(DeviceId device);

int select_device(int ordinal);  // Returns the device that was current before.
void restore_device(int ordinal) noexcept;

// OutOfMemory names requested, free and total bytes.
void* allocate_bytes(int ordinal, std::size_t bytes);
void free_bytes(int ordinal, void* pointer) noexcept;
// Page-locks whole pages of host memory for every device. Returns the runtime's message if the
// system does not allow it, otherwise an empty string.
std::string lock_pages(int ordinal, void* pages, std::size_t bytes);
void unlock_pages(void* pages) noexcept;
void fill_bytes(int ordinal, void* pointer, int value, std::size_t bytes);
void copy_bytes(int ordinal, void* dst, const void* src, std::size_t bytes);  // Waits for the copy.
void copy_bytes_async(StreamRef stream, void* dst, const void* src, std::size_t bytes,
                      LinkDirection direction);

}  // namespace sluiceway::cuda
