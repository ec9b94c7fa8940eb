// The driver's lock and the calls that wait for idle streams: waits that cannot end are found and
// all who wait are named; slow waits are not reported.
#include <pthread.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <functional>
#include <optional>
#include <thread>
#include <utility>

#include "kernels/cuda/dense.h"
#include "kernels/cuda/launch.cuh"
#include "tests/simt/planted.h"
#include "tests/support/device_array.h"

namespace sluiceway::test {
namespace {

using testing::AllOf;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;

constexpr unsigned kThreads = 32;

__global__ void add_one(float* x) { x[threadIdx.x] += 1.0F; }
__global__ void add_two(float* x) { x[threadIdx.x] += 2.0F; }
__global__ void add_three(float* x) { x[threadIdx.x] += 3.0F; }
__global__ void add_four(float* x) { x[threadIdx.x] += 4.0F; }
__global__ void add_five(float* x) { x[threadIdx.x] += 5.0F; }
__global__ void add_six(float* x) { x[threadIdx.x] += 6.0F; }
__global__ void take_ms(int ms) { usleep(static_cast<unsigned>(ms) * 1000U); }

template <typename... Params>
void load(void (*kernel)(Params...)) {
  cudaFuncAttributes attributes;
  ASSERT_EQ(cudaFuncGetAttributes(&attributes, kernel), cudaSuccess);
}

// A stream of the runtime, without our own wrapper.
class RawStream {
 public:
  RawStream() {
    EXPECT_EQ(cudaStreamCreateWithFlags(&stream_, cudaStreamNonBlocking), cudaSuccess);
  }
  RawStream(const RawStream&) = delete;
  RawStream& operator=(const RawStream&) = delete;
  ~RawStream() { cudaStreamDestroy(stream_); }
  cudaStream_t get() const { return stream_; }
  StreamRef ref() const { return StreamRef::cuda(0, stream_); }

 private:
  cudaStream_t stream_ = nullptr;
};

std::thread named_thread(const char* name, std::function<void()> work) {
  return std::thread([name, work = std::move(work)] {
    pthread_setname_np(pthread_self(), name);
    work();
  });
}

// Waits until some thread keeps the driver's lock and waits for idle streams.
void wait_for_idle_wait() {
  while (simt::calls().total("wait for idle streams") == 0) {
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
}

class SimtDriverTest : public SimtTest {
 protected:
  void SetUp() override {
    for (void (*const kernel)(float*) : {&add_one, &add_two}) load(kernel);
    load(&take_ms);
    simt::reset_calls();
  }

  template <typename Kernel>
  cudaError_t launch(const RawStream& on, Kernel kernel) const {
    const cudaLaunchConfig_t config{1, kThreads, 0, on.get(), nullptr, 0};
    return cudaLaunchKernelEx(&config, kernel, x.data());
  }
  static cudaError_t launch_take_ms(const RawStream& on, int ms) {
    const cudaLaunchConfig_t config{1, 1, 0, on.get(), nullptr, 0};
    return cudaLaunchKernelEx(&config, &take_ms, ms);
  }

  const DeviceGuard device_{DeviceId::cuda(0)};
  DeviceArray<float> x{std::vector<float>(kThreads, 1.0F)};
  RawStream first, second;
};

// ---- Planted bugs -------------------------------------------------------------------------------

TEST_F(SimtDriverTest, StreamThatWaitsForTheHost) {
  for (int seed = 1; seed <= kSeeds; ++seed) {
    simt::set_seed(static_cast<std::uint64_t>(seed));
    simt::reset_calls();
    std::uint32_t word = 0;
    simt::wait_for_word(first.get(), &word);
    cudaEvent_t event = nullptr;
    ASSERT_EQ(cudaEventCreateWithFlags(&event, cudaEventDisableTiming), cudaSuccess);
    ASSERT_EQ(cudaEventRecord(event, first.get()), cudaSuccess);
    ASSERT_EQ(cudaStreamWaitEvent(second.get(), event, 0), cudaSuccess);
    std::thread lane = named_thread("sw-h2d", [&] {
      cudaSetDevice(0);
      wait_for_idle_wait();
      launch(second, &add_one);  // The driver is taken, so the word stays as it is.
      std::atomic_ref(word).store(1);
    });
    void* pointer = nullptr;
    EXPECT_EQ(cudaMalloc(&pointer, 8), cudaErrorLaunchFailure);
    lane.join();
    EXPECT_THAT(
        simt::take_findings(),
        ElementsAre(AllOf(
            HasSubstr("thread main holds the driver in cudaMalloc, which waits for idle streams"),
            HasSubstr(
                "thread sw-h2d waits for the driver in a launch of kernel test::add_one(float*)"),
            HasSubstr("(last used by thread main) waits until the host sets the word at 0x"),
            HasSubstr("(last used by thread main) waits for an event of stream "))));
    EXPECT_EQ(cudaEventDestroy(event), cudaSuccess);
  }
}

TEST_F(SimtDriverTest, WordThatIsRaisedWithoutTheDriverIsNoDeadlock) {
  std::uint32_t word = 0;
  simt::wait_for_word(first.get(), &word);
  std::thread lane = named_thread("sw-h2d", [&] {
    wait_for_idle_wait();
    std::atomic_ref(word).store(1);
  });
  void* pointer = nullptr;
  EXPECT_EQ(cudaMalloc(&pointer, 8), cudaSuccess);
  lane.join();
  EXPECT_EQ(cudaFree(pointer), cudaSuccess);
}

TEST_F(SimtDriverTest, CallsThatWaitForIdleStreamsWhileTheirThreadHoldsTheDevice) {
  std::vector<std::byte> pages(4096), locked(4096);
  void *pointer = nullptr, *freed = nullptr;
  cudaStream_t made = nullptr, ended = nullptr;
  cudaEvent_t event = nullptr;
  cudaFuncAttributes attributes;
  ASSERT_EQ(cudaMalloc(&freed, 8), cudaSuccess);
  ASSERT_EQ(cudaHostRegister(locked.data(), locked.size(), 0), cudaSuccess);
  ASSERT_EQ(cudaStreamCreateWithFlags(&ended, cudaStreamNonBlocking), cudaSuccess);
  ASSERT_EQ(cudaEventCreateWithFlags(&event, cudaEventDisableTiming), cudaSuccess);
  const std::vector<std::pair<const char*, std::function<void()>>> calls = {
      {"cudaMalloc", [&] { cudaMalloc(&pointer, 8); }},
      {"cudaFree", [&] { cudaFree(freed); }},
      {"cudaHostAlloc", [&] { cudaHostAlloc(&pointer, 8, 0); }},
      {"cudaHostRegister", [&] { cudaHostRegister(pages.data(), pages.size(), 0); }},
      {"cudaHostUnregister", [&] { cudaHostUnregister(locked.data()); }},
      {"cudaEventDestroy", [&] { cudaEventDestroy(event); }},
      {"cudaStreamDestroy", [&] { cudaStreamDestroy(ended); }},
      {"cudaStreamCreateWithFlags", [&] { cudaStreamCreateWithFlags(&made, 0); }},
      {"cudaStreamCreateWithPriority", [&] { cudaStreamCreateWithPriority(&made, 0, 0); }},
      {"a launch of kernel test::add_three(float*)", [&] { launch(second, &add_three); }},
      {"cudaFuncGetAttributes", [&] { cudaFuncGetAttributes(&attributes, &add_four); }}};
  for (const auto& [name, call] : calls) {
    const simt::Hold hold;
    ASSERT_EQ(launch(first, &add_one), cudaSuccess) << name;
    call();
    EXPECT_THAT(simt::take_findings(),
                ElementsAre(AllOf(
                    HasSubstr(concat("thread main holds the driver in ", name, ", which waits")),
                    HasSubstr("waits until thread main lets go of the device"))))
        << name;
  }
  EXPECT_EQ(cudaHostUnregister(pages.data()), cudaSuccess);
}

TEST_F(SimtDriverTest, ThreadThatHoldsTheDeviceWaitsForAStream) {
  for (const bool for_event : {false, true}) {
    cudaEvent_t event = nullptr;
    ASSERT_EQ(cudaEventCreateWithFlags(&event, cudaEventDisableTiming), cudaSuccess);
    {
      const simt::Hold hold;
      ASSERT_EQ(launch(first, &add_one), cudaSuccess);
      ASSERT_EQ(cudaEventRecord(event, first.get()), cudaSuccess);
      EXPECT_EQ(for_event ? cudaEventSynchronize(event) : cudaStreamSynchronize(first.get()),
                cudaErrorLaunchFailure);
    }
    EXPECT_THAT(
        simt::take_findings(),
        ElementsAre(AllOf(HasSubstr("thread main waits for "), HasSubstr("stream "),
                          HasSubstr(for_event ? "cudaEventSynchronize" : "cudaStreamSynchronize"),
                          HasSubstr("waits until thread main lets go of the device"))));
    EXPECT_EQ(cudaEventDestroy(event), cudaSuccess);
  }
}

TEST_F(SimtDriverTest, ThreadThatHoldsTheDeviceWaitsForTheDriver) {
  std::optional<simt::Hold> hold(std::in_place);
  ASSERT_EQ(launch(first, &add_one), cudaSuccess);
  void* pointer = nullptr;
  std::thread lane = named_thread("sw-d2h", [&] {
    cudaSetDevice(0);
    EXPECT_EQ(cudaMalloc(&pointer, 8), cudaErrorLaunchFailure);
  });
  wait_for_idle_wait();
  EXPECT_EQ(launch(second, &add_two), cudaErrorLaunchFailure);
  lane.join();
  hold.reset();
  EXPECT_THAT(simt::take_findings(),
              ElementsAre(AllOf(
                  HasSubstr("thread sw-d2h holds the driver in cudaMalloc"),
                  HasSubstr("thread main waits for the driver in a launch of kernel test::add_two"),
                  HasSubstr("waits until thread main lets go of the device"))));
}

TEST_F(SimtDriverTest, FirstProductOfAShapeWaits) {
  const DeviceArray<float> product(kThreads);
  const auto multiply = [&](std::int64_t rows) {
    const MatrixView<const float> a(x.data(), rows, 2), b(x.data() + 8, 2, 2);
    cuda::gemm(1.0F, {a}, {b}, 0.0F, {product.data(), rows, 2}, first.ref());
  };
  multiply(3);
  const simt::Hold hold;
  multiply(3);
  EXPECT_EQ(simt::calls().total("gemm"), 2U);
  EXPECT_EQ(simt::calls().total("wait for idle streams"), 0U);
  EXPECT_THROW(multiply(4), CudaError);
  EXPECT_THAT(simt::take_findings(),
              ElementsAre(HasSubstr("thread main holds the driver in gemm of 4x2 and 2x2")));
}

// ---- Correct code -------------------------------------------------------------------------------

TEST_F(SimtDriverTest, WhoLoadsAndAllocatesBeforeMayEnqueueWhileTheDeviceIsHeld) {
  cudaEvent_t event = nullptr, other = nullptr;
  {
    const simt::Hold hold;
    EXPECT_EQ(launch(first, &add_one), cudaSuccess);
    EXPECT_EQ(cudaEventCreateWithFlags(&event, cudaEventDisableTiming), cudaSuccess);
    EXPECT_EQ(cudaEventCreateWithFlags(&other, cudaEventDisableTiming), cudaSuccess);
    EXPECT_EQ(cudaEventRecord(event, first.get()), cudaSuccess);
    EXPECT_EQ(cudaEventQuery(event), cudaErrorNotReady);
    EXPECT_EQ(cudaStreamWaitEvent(second.get(), event, 0), cudaSuccess);
    EXPECT_EQ(launch(second, &add_two), cudaSuccess);
    EXPECT_EQ(cudaMemsetAsync(x.data(), 0, x.size_bytes(), second.get()), cudaSuccess);
    EXPECT_EQ(simt::calls().total("wait for idle streams"), 0U);
  }
  EXPECT_EQ(cudaEventDestroy(event), cudaSuccess);
  EXPECT_EQ(cudaEventDestroy(other), cudaSuccess);
}

// Runs longer than any wait that was reported above.
TEST_F(SimtDriverTest, DeviceThatIsSlowAndAliveGivesNoReport) {
  cudaEvent_t event = nullptr;
  ASSERT_EQ(cudaEventCreateWithFlags(&event, cudaEventDisableTiming), cudaSuccess);
  ASSERT_EQ(launch_take_ms(first, 1500), cudaSuccess);
  ASSERT_EQ(cudaEventRecord(event, first.get()), cudaSuccess);
  ASSERT_EQ(cudaStreamWaitEvent(second.get(), event, 0), cudaSuccess);
  ASSERT_EQ(launch(second, &add_one), cudaSuccess);
  std::thread lane = named_thread("sw-h2d", [&] {
    cudaSetDevice(0);
    wait_for_idle_wait();
    EXPECT_EQ(launch_take_ms(first, 0), cudaSuccess);
  });
  void* pointer = nullptr;
  const auto begin = std::chrono::steady_clock::now();
  EXPECT_EQ(cudaMalloc(&pointer, 8), cudaSuccess);
  EXPECT_GE(std::chrono::steady_clock::now() - begin, std::chrono::milliseconds(1400));
  lane.join();
  EXPECT_EQ(cudaFree(pointer), cudaSuccess);
  EXPECT_EQ(cudaEventDestroy(event), cudaSuccess);
}

TEST_F(SimtDriverTest, StreamThatMovesFromOneWaitToTheNextGivesNoReport) {
  constexpr std::size_t kWords = 6;
  std::array<std::uint32_t, kWords> words{};
  for (std::uint32_t& word : words) simt::wait_for_word(first.get(), &word);
  std::thread lane = named_thread("sw-h2d", [&] {
    wait_for_idle_wait();
    for (std::uint32_t& word : words) {
      std::this_thread::sleep_for(std::chrono::milliseconds(250));
      std::atomic_ref(word).store(1);
    }
  });
  void* pointer = nullptr;
  EXPECT_EQ(cudaMalloc(&pointer, 8), cudaSuccess);
  lane.join();
  EXPECT_EQ(cudaFree(pointer), cudaSuccess);
}

// ---- The list of kernels, and counts ------------------------------------------------------------

TEST_F(SimtDriverTest, KernelThatIsNotInTheList) {
  EXPECT_EQ(launch(first, &add_five), cudaSuccess);
  unlisted_.reset();
  EXPECT_EQ(launch(first, &add_five), cudaSuccess);
  EXPECT_EQ(launch(first, &add_six), cudaErrorLaunchFailure);
  EXPECT_THAT(
      simt::take_findings(),
      ElementsAre(AllOf(HasSubstr("kernel test::add_six(float*) was launched on CUDA device 0"),
                        HasSubstr("is not in the list of kernels that are loaded when"))));
}

TEST_F(SimtDriverTest, CallsAreCountedByThread) {
  std::thread lane = named_thread("sw-apply", [&] {
    cudaSetDevice(0);
    EXPECT_EQ(launch_take_ms(first, 0), cudaSuccess);
    EXPECT_EQ(launch_take_ms(first, 0), cudaSuccess);
  });
  lane.join();
  EXPECT_EQ(launch_take_ms(second, 0), cudaSuccess);
  EXPECT_EQ(cudaMemsetAsync(x.data(), 0, 4, first.get()), cudaSuccess);
  const simt::Calls calls = simt::calls();
  EXPECT_EQ(calls.by_thread.at("sw-apply").at("cudaLaunchKernelEx"), 2U);
  EXPECT_EQ(calls.by_thread.at("main").at("cudaLaunchKernelEx"), 1U);
  EXPECT_EQ(calls.total("cudaLaunchKernelEx"), 3U);
  EXPECT_EQ(calls.total("cudaMemsetAsync"), 1U);
  EXPECT_EQ(calls.total("driver's lock"), 4U);
  EXPECT_EQ(calls.total("cudaMalloc"), 0U);
  simt::reset_calls();
  EXPECT_THAT(simt::calls().by_thread, IsEmpty());
}

}  // namespace
}  // namespace sluiceway::test
