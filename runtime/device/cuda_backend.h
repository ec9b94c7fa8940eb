// The CUDA half of the device layer. cuda/ has it; no_cuda/ throws Unavailable, and counts no
// devices. Only the other sources of this folder call it, and tests/support/stream_work.h.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>

#include "runtime/device/link_copy.h"
#include "runtime/device/signal_word.h"
#include "runtime/device/stream_backend.h"
#include "runtime/device/time_mark.h"

namespace sluiceway::cuda {

int device_count() noexcept;
std::unique_ptr<StreamBackend> make_owned_stream(DeviceId device, const Stream::Options& options);
std::unique_ptr<StreamBackend> make_borrowed_stream(StreamRef stream);
void wait_for(StreamRef stream);
std::unique_ptr<TimeMark> make_time_mark(DeviceId device);

int select_device(int ordinal);  // Returns the one that was current.
void restore_device(int ordinal) noexcept;

void* allocate_bytes(int ordinal, std::size_t bytes);  // OutOfMemory: asked for, free, total.
void free_bytes(int ordinal, void* pointer) noexcept;
// Page-locks whole pages of the host for every device. What the runtime says where the system will
// not have them locked, else empty.
std::string lock_pages(int ordinal, void* pages, std::size_t bytes);
void unlock_pages(void* pages) noexcept;
void fill_bytes(int ordinal, void* pointer, int value, std::size_t bytes);
void copy_bytes(int ordinal, void* dst, const void* src, std::size_t bytes);  // Waits.
void copy_bytes_async(StreamRef stream, void* dst, const void* src, std::size_t bytes,
                      LinkDirection direction);

// The stream calls `function` on a thread of the driver, between what was enqueued before and what
// is enqueued later. It must not call CUDA, block or throw. A device that fails never calls it.
void call_on_host(StreamRef stream, const std::function<void()>& function);

// A word of page-locked memory, and a stream's wait for it: cuStreamWaitValue32. Unavailable: the
// driver is older than CUDA 11.7. A call that waits for the whole device (cudaFree) on the thread
// that shall raise the word never returns.
std::shared_ptr<HostSignal> make_signal(DeviceId device);
void hold_for(std::uint32_t* word, StreamRef stream);

}  // namespace sluiceway::cuda
