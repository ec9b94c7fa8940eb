#include "runtime/device/cuda/host_signal.h"

#include <cuda.h>
#include <cudaTypedefs.h>

#include <atomic>
#include <mutex>
#include <vector>

#include "kernels/base/check.h"
#include "runtime/device/cuda/cuda_check.h"

namespace sluiceway::cuda {
namespace {

constexpr std::uint32_t kRaised = 1;
constexpr std::size_t kWordsPerPage = 4096 / sizeof(std::uint32_t);

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

// Words are used again and never given back: freeing page-locked memory waits for the device.
class WordPool {
 public:
  std::uint32_t* take() {
    const std::lock_guard lock(mutex_);
    if (free_.empty()) grow();
    std::uint32_t* const word = free_.back();
    free_.pop_back();
    return word;
  }

  void give_back(std::uint32_t* word) noexcept {
    const std::lock_guard lock(mutex_);
    free_.push_back(word);  // Never allocates: grow() has made room for every word.
  }

 private:
  void grow() {
    free_.reserve(words_ + kWordsPerPage);
    void* page = nullptr;
    SLUICEWAY_CUDA_CHECK(cudaHostAlloc(&page, kWordsPerPage * sizeof(std::uint32_t),
                                       cudaHostAllocPortable | cudaHostAllocMapped));
    for (std::size_t i = 0; i < kWordsPerPage; ++i) {
      free_.push_back(static_cast<std::uint32_t*>(page) + i);
    }
    words_ += kWordsPerPage;
  }

  std::mutex mutex_;
  std::vector<std::uint32_t*> free_;
  std::size_t words_ = 0;
};

WordPool& word_pool() {
  static WordPool* const pool = new WordPool;  // Outlives every stream, at exit too.
  return *pool;
}

}  // namespace

std::shared_ptr<HostSignal> HostSignal::make() {
  std::uint32_t* const word = word_pool().take();
  std::atomic_ref(*word).store(0, std::memory_order_relaxed);
  return std::make_shared<HostSignal>(word);
}

HostSignal::~HostSignal() { word_pool().give_back(word_); }

void HostSignal::raise() noexcept {
  std::atomic_ref(*word_).store(kRaised, std::memory_order_release);
}

void HostSignal::hold(cudaStream_t stream) const {
  static const WaitValue wait_value = driver_wait_value();
  void* address = nullptr;
  SLUICEWAY_CUDA_CHECK(cudaHostGetDevicePointer(&address, word_, 0));
  const CUresult result =
      wait_value(stream, reinterpret_cast<CUdeviceptr>(address), kRaised, CU_STREAM_WAIT_VALUE_EQ);
  if (result != CUDA_SUCCESS) {
    throw CudaError(concat("cuStreamWaitValue32: CUresult ", static_cast<int>(result),
                           ", expected CUDA_SUCCESS"));
  }
}

}  // namespace sluiceway::cuda
