#include <cuda.h>
#include <cudaTypedefs.h>
#include <cuda_runtime_api.h>

#include <atomic>
#include <stdexcept>
#include <string>
#include <utility>

#include "runtime/device/stream.h"
#include "tests/support/stream_hold.h"

namespace sluiceway::test {
namespace {

void check(cudaError_t result, const char* call) {
  if (result == cudaSuccess) return;
  cudaGetLastError();
  throw std::runtime_error(std::string(call) + ": " + cudaGetErrorString(result));
}

// Loaded through the runtime: linking libcuda would keep the program from starting without it.
PFN_cuStreamWaitValue32_v11070 wait_value() {
  void* entry = nullptr;
  cudaDriverEntryPointQueryResult found = cudaDriverEntryPointSymbolNotFound;
  check(cudaGetDriverEntryPointByVersion("cuStreamWaitValue32", &entry, 11070, cudaEnableDefault,
                                         &found),
        "cudaGetDriverEntryPointByVersion");
  if (entry == nullptr) throw std::runtime_error("the driver has no cuStreamWaitValue32");
  return reinterpret_cast<PFN_cuStreamWaitValue32_v11070>(entry);
}

}  // namespace

HoldWord::HoldWord(DeviceId device) {
  const DeviceGuard guard(device);
  void* word = nullptr;
  check(cudaHostAlloc(&word, sizeof *word_, cudaHostAllocPortable | cudaHostAllocMapped),
        "cudaHostAlloc");
  word_ = static_cast<std::uint32_t*>(word);
  *word_ = 0;
}

void HoldWord::hold(StreamRef stream) const {
  static const PFN_cuStreamWaitValue32_v11070 wait = wait_value();
  const DeviceGuard guard(stream.device());
  void* address = nullptr;
  check(cudaHostGetDevicePointer(&address, word_, 0), "cudaHostGetDevicePointer");
  const CUresult result = wait(static_cast<cudaStream_t>(stream.native()),
                               reinterpret_cast<CUdeviceptr>(address), 1, CU_STREAM_WAIT_VALUE_EQ);
  if (result != CUDA_SUCCESS) throw std::runtime_error("cuStreamWaitValue32 was refused");
}

void HoldWord::raise() const noexcept {
  std::atomic_ref(*word_).store(1, std::memory_order_release);
}

void call_in_stream(StreamRef stream, std::function<void()> function) {
  auto held = std::make_unique<std::function<void()>>(std::move(function));
  const auto call = [](void* taken) noexcept {
    const std::unique_ptr<std::function<void()>> owned(static_cast<std::function<void()>*>(taken));
    (*owned)();
  };
  check(cudaLaunchHostFunc(static_cast<cudaStream_t>(stream.native()), call, held.get()),
        "cudaLaunchHostFunc");
  (void)held.release();  // The call owns it.
}

}  // namespace sluiceway::test
