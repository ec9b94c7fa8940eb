// Host access to memory that kernels work on. On the host device that is host memory, and nothing
// is copied; on a CUDA device each copy waits for the stream first.
//
//   ResultSlot   memory where a kernel leaves a scan or a norm for the caller
//   HostMatrix   a matrix to read
//
// Ownership:     device bytes are reserved on the device tier, copies on the host tier.
// Thread safety: one thread at a time.
// Errors:        OutOfMemory, with byte counts; CudaError if the device has failed. Unavailable for
//                the stream of a CUDA device with a ResultSlot that was made for the host device.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string_view>
#include <type_traits>

#include "kernels/base/stream_ref.h"
#include "kernels/base/view.h"
#include "runtime/memory/buffer.h"

namespace sluiceway {

class ResultSlot {
 public:
  ResultSlot() noexcept = default;  // For the host device only.
  ResultSlot(DeviceId device, Budget& budget, std::string_view purpose);
  static std::uint64_t bytes(DeviceId device) noexcept { return device.is_host() ? 0 : kBytes; }

  // Returns where a kernel on `stream` writes: `here` itself, or memory that fetch() copies to it.
  template <typename T>
  T* place(T& here, StreamRef stream) const {
    static_assert(std::is_trivially_copyable_v<T> && sizeof(T) <= kBytes);
    return stream.is_host() ? &here : static_cast<T*>(on_device(stream));
  }
  template <typename T>
  void fetch(T& here, StreamRef stream) const {
    if (!stream.is_host()) copy_to(&here, sizeof here, stream);
  }

  // Returns the result of kernel(T*).
  template <typename T, class Kernel>
  T of(StreamRef stream, const Kernel& kernel) const {
    T here{};
    kernel(place(here, stream));
    fetch(here, stream);
    return here;
  }

 private:
  static constexpr std::size_t kBytes = 32;

  void* on_device(StreamRef stream) const;
  void copy_to(void* here, std::size_t bytes, StreamRef stream) const;

  Buffer memory_;
};

class HostMatrix {
 public:
  HostMatrix(const AnyMatrix& x, StreamRef stream, Budget& budget);
  const AnyMatrix& view() const noexcept { return view_; }

 private:
  AnyMatrix view_;
  Buffer copy_;
};

}  // namespace sluiceway
