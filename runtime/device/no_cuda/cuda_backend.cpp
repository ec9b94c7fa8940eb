#include "runtime/device/cuda_backend.h"

#include "kernels/base/check.h"

namespace sluiceway::cuda {
namespace {

[[noreturn]] void unavailable(int ordinal) {
  throw Unavailable(concat("device: CUDA device ", ordinal,
                           " was requested, but this build has no CUDA; use the host device, or "
                           "configure with SLUICEWAY_CUDA=ON"));
}

}  // namespace

int device_count() noexcept { return 0; }

std::unique_ptr<StreamBackend> make_owned_stream(DeviceId device, const Stream::Options&) {
  unavailable(device.ordinal());
}

std::unique_ptr<StreamBackend> make_borrowed_stream(StreamRef stream) {
  unavailable(stream.device().ordinal());
}

void wait_for(StreamRef stream) { unavailable(stream.device().ordinal()); }

void enqueue_wait(StreamRef stream, const Event&) { unavailable(stream.device().ordinal()); }

std::unique_ptr<TimeMark> make_time_mark(DeviceId device) { unavailable(device.ordinal()); }

int select_device(int ordinal) { unavailable(ordinal); }

void restore_device(int) noexcept {}

void* allocate_bytes(int ordinal, std::size_t) { unavailable(ordinal); }

void free_bytes(int, void*) noexcept {}

std::string lock_pages(int ordinal, void*, std::size_t) { unavailable(ordinal); }

void unlock_pages(void*) noexcept {}

void fill_bytes(int ordinal, void*, int, std::size_t) { unavailable(ordinal); }

void copy_bytes(int ordinal, void*, const void*, std::size_t) { unavailable(ordinal); }

void copy_bytes_async(StreamRef stream, void*, const void*, std::size_t, LinkDirection) {
  unavailable(stream.device().ordinal());
}

}  // namespace sluiceway::cuda
