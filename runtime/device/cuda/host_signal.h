// A word of page-locked memory that the host raises and a CUDA stream waits for, so that a stream
// can wait for an event of a worker thread and no thread blocks for it.
//
//   the host stores 1 with release order; the stream's wait (cuStreamWaitValue32) acquires
//
// Ownership:     shared; the word is used again when the last owner lets go, so the owner of a
//                wait holds the signal until the stream has passed it.
// Thread safety: every call from any thread.
// Errors:        Unavailable: the driver is older than CUDA 11.7. A call that waits for the whole
//                device (cudaFree) on the thread that shall raise the signal never returns.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>
#include <memory>

namespace sluiceway::cuda {

class HostSignal {
 public:
  static std::shared_ptr<HostSignal> make();  // Not raised. Needs a current device.

  explicit HostSignal(std::uint32_t* word) noexcept : word_(word) {}
  HostSignal(const HostSignal&) = delete;
  HostSignal& operator=(const HostSignal&) = delete;
  ~HostSignal();

  void raise() noexcept;
  void hold(cudaStream_t stream) const;  // Work enqueued on `stream` later starts after raise().

 private:
  std::uint32_t* word_;
};

}  // namespace sluiceway::cuda
