#include <cuda.h>
#include <cudaTypedefs.h>

#include "kernels/base/check.h"
#include "runtime/device/cuda/cuda_check.h"
#include "runtime/device/cuda_backend.h"

namespace sluiceway::cuda {
namespace {

using WaitValue = PFN_cuStreamWaitValue32_v11070;

// Asked of the driver at run time: linking libcuda would keep the program from starting without it.
WaitValue driver_wait_value() {
  void* entry = nullptr;
  cudaDriverEntryPointQueryResult found = cudaDriverEntryPointSymbolNotFound;
  SLUICEWAY_CUDA_CHECK(cudaGetDriverEntryPointByVersion("cuStreamWaitValue32", &entry, 11070,
                                                        cudaEnableDefault, &found));
  if (found != cudaDriverEntryPointSuccess || entry == nullptr) {
    throw Unavailable(
        "stream: the driver has no cuStreamWaitValue32, expected CUDA 11.7 or later; update it");
  }
  return reinterpret_cast<WaitValue>(entry);
}

std::uint32_t* new_page() {
  void* page = nullptr;
  SLUICEWAY_CUDA_CHECK(cudaHostAlloc(&page, SignalWords::kPageWords * sizeof(std::uint32_t),
                                     cudaHostAllocPortable | cudaHostAllocMapped));
  return static_cast<std::uint32_t*>(page);
}

SignalWords& page_locked_words() {
  static SignalWords* const words = new SignalWords(&new_page);  // Outlives every stream.
  return *words;
}

}  // namespace

std::shared_ptr<HostSignal> make_signal(DeviceId device) {
  const DeviceGuard guard(device);  // For a new page.
  return HostSignal::make(page_locked_words());
}

void hold_for(std::uint32_t* word, StreamRef stream) {
  static const WaitValue wait_value = driver_wait_value();
  void* address = nullptr;
  SLUICEWAY_CUDA_CHECK(cudaHostGetDevicePointer(&address, word, 0));
  const CUresult result =
      wait_value(static_cast<cudaStream_t>(stream.native()), reinterpret_cast<CUdeviceptr>(address),
                 1, CU_STREAM_WAIT_VALUE_EQ);
  if (result != CUDA_SUCCESS) {
    throw CudaError(concat("cuStreamWaitValue32: CUresult ", static_cast<int>(result),
                           ", expected CUDA_SUCCESS"));
  }
}

void call_on_host(StreamRef stream, const std::function<void()>& function) {
  auto held = std::make_unique<std::function<void()>>(function);
  const auto call = [](void* taken) noexcept {
    const std::unique_ptr<std::function<void()>> owned(static_cast<std::function<void()>*>(taken));
    (*owned)();
  };
  SLUICEWAY_CUDA_CHECK(
      cudaLaunchHostFunc(static_cast<cudaStream_t>(stream.native()), call, held.get()));
  (void)held.release();  // The call owns it.
}

}  // namespace sluiceway::cuda
