// The device layer when calls of the CUDA runtime fail: what it reports, and that it leaves nothing
// behind: no stream that waits forever, no handle, no error for the next caller who asks for the
// last one.
#include <algorithm>
#include <cstring>
#include <future>
#include <memory>
#include <string>
#include <vector>

#include "kernels/cuda/launch.cuh"
#include "kernels/cuda/stream_scratch.cuh"
#include "runtime/device/link_copy.h"
#include "runtime/memory/pinned_pool.h"
#include "runtime/trace/warning.h"
#include "tests/runtime/device/cuda_bytes.h"
#include "tests/runtime/device/no_device.h"
#include "tests/simt/planted.h"
#include "tests/support/what_of.h"

namespace sluiceway::test {
namespace {

using testing::AllOf;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::ThrowsMessage;

class SimtDeviceTest : public SimtTest {
 protected:
  static constexpr std::size_t kBytes = 5000;

  void TearDown() override {
    EXPECT_EQ(cudaGetLastError(), cudaSuccess);
    EXPECT_EQ(simt::live_streams(), streams_);
    SimtTest::TearDown();
  }

  // Returns the error of one copy over `link`, from its completion or from enqueue(); "" if none.
  static std::string error_of_copy(Stream& stream, LinkCopy& link, const Allocation& dst,
                                   const Allocation& src) {
    std::promise<std::exception_ptr> told;
    return what_of([&] {
      stream.enqueue([&](StreamRef ref) { link.copy(dst.data(), src.data(), dst.size(), ref); },
                     [&](const Completion& completion) { told.set_value(completion.error); });
      const std::exception_ptr error = told.get_future().get();
      if (error != nullptr) std::rethrow_exception(error);
    });
  }

  const int streams_ = simt::live_streams();
};

TEST_F(SimtDeviceTest, EveryEntrySaysThatTheMachineHasNoDriver) {
  const simt::Fault fault("cudaGetDeviceCount", cudaErrorInsufficientDriver);
  EXPECT_EQ(device_count(), 0);
  for (const auto& [name, entry] : entries_for_device_3()) {
    SCOPED_TRACE(name);
    EXPECT_THAT(entry, ThrowsMessage<Unavailable>(HasSubstr("this machine has none")));
  }
}

TEST_F(SimtDeviceTest, PagesThatTheSystemDoesNotLockAreWarnedOfOnceAndCopiedAllTheSame) {
  std::vector<std::string> warnings;
  WarningHandler before =
      set_warning_handler([&](const std::string& text) { warnings.push_back(text); });
  {
    const simt::Fault fault("cudaHostRegister", cudaErrorMemoryAllocation);
    const simt::Fault unlock("cudaHostUnregister", cudaErrorHostMemoryNotRegistered);
    const Allocation source = pinned(kBytes), target = pinned(kBytes), device = on_device(kBytes);
    EXPECT_EQ(fault.times(), 2);
    EXPECT_FALSE(source.locked());
    std::memset(source.data(), 'p', kBytes);
    std::memset(target.data(), '-', kBytes);
    Stream stream = Stream::owned(kCuda0, {"stream"});
    for (const double gbps : {0.0, 1.0}) {
      LinkCopy up(kCuda0, LinkDirection::kHostToDevice, {.gbps = gbps});
      LinkCopy down(kCuda0, LinkDirection::kDeviceToHost, {.gbps = gbps});
      EXPECT_EQ(error_of_copy(stream, up, device, source), "");
      EXPECT_EQ(error_of_copy(stream, down, target, device), "");
      EXPECT_EQ(target.data()[kBytes - 1], 'p');
      std::memset(target.data(), '-', kBytes);
    }
    Budget budget({0, 0, 1 << 20, 0});
    const PinnedPool pool(budget, kCuda0, {.slab_bytes = 4096});
    EXPECT_EQ(fault.times(), 3);
    free_pinned_bytes(allocate_pinned_bytes(kCuda0, 8), 8);
    EXPECT_EQ(unlock.times(), 0);
  }
  set_warning_handler(std::move(before));
  EXPECT_THAT(warnings, ElementsAre(AllOf(
                            HasSubstr("could not page-lock 8192 bytes"), HasSubstr("host memory"),
                            HasSubstr("CUDA device 0"), HasSubstr("cudaErrorMemoryAllocation"),
                            HasSubstr("RLIMIT_MEMLOCK is "), HasSubstr("ulimit -l"))));
}

TEST_F(SimtDeviceTest, LockingIsTriedAndUndoneWithoutAWarning) {
  bool warned = false;
  WarningHandler before = set_warning_handler([&](const std::string&) { warned = true; });
  EXPECT_EQ(page_lock_refusal(kCuda0, kBytes), "");
  EXPECT_EQ(page_lock_refusal(kCuda0, kBytes), "") << "pages that stay locked are refused twice";
  {
    const simt::Fault fault("cudaHostRegister", cudaErrorMemoryAllocation);
    EXPECT_THAT(page_lock_refusal(kCuda0, kBytes), HasSubstr("cudaErrorMemoryAllocation"));
  }
  set_warning_handler(std::move(before));
  EXPECT_FALSE(warned);
}

TEST_F(SimtDeviceTest, PagesThatAreLockedAreUnlockedAgain) {
  void* pages = nullptr;
  {
    const simt::Fault unlock("cudaHostUnregister", cudaErrorInvalidValue);
    const PinnedBytes held = allocate_pinned_bytes(kCuda0, kBytes);
    EXPECT_TRUE(held.locked);
    free_pinned_bytes(held, kBytes);
    EXPECT_EQ(unlock.times(), 1);
    pages = held.data;
  }
  EXPECT_EQ(cudaHostUnregister(pages), cudaSuccess);  // The fault has prevented this.
}

TEST_F(SimtDeviceTest, RegistrationThatIsWrongIsAnError) {
  const simt::Fault fault("cudaHostRegister", cudaErrorHostMemoryAlreadyRegistered);
  EXPECT_THAT([] { allocate_pinned_bytes(kCuda0, kBytes); },
              ThrowsMessage<CudaError>(HasSubstr("cudaHostRegister: cudaErrorHostMemoryAlready")));
}

TEST_F(SimtDeviceTest, MemoryThatIsRefusedForAnotherReasonThanItsSizeIsNoLackOfIt) {
  const simt::Fault fault("cudaMalloc", cudaErrorNotPermitted);
  EXPECT_THAT([] { allocate_device_bytes(kCuda0, kBytes); },
              ThrowsMessage<CudaError>(HasSubstr("cudaMalloc: cudaErrorNotPermitted (800)")));
}

TEST_F(SimtDeviceTest, CallsThatFreeLeaveNoErrorToOthers) {
  {
    const Allocation device = on_device(kBytes), pages = pinned(kBytes);
    Stream stream = Stream::owned(kCuda0, {"stream"});
    const Event event = stream.record();
    event.wait();
    const simt::Fault free("cudaFree", cudaErrorInvalidValue, 1);
    free_device_bytes(kCuda0, allocate_device_bytes(kCuda0, 8), 8);
    EXPECT_EQ(free.times(), 0);
    void* const kept = allocate_device_bytes(kCuda0, 8);
    free_device_bytes(kCuda0, kept, 8);
    EXPECT_EQ(free.times(), 1);
    EXPECT_EQ(cudaGetLastError(), cudaSuccess);
  }
  const DeviceGuard device_0(kCuda0);
  {
    const simt::Fault set("cudaSetDevice", cudaErrorInvalidDevice);
    { const DeviceGuard same_device(kCuda0); }
    EXPECT_EQ(set.times(), 0);
  }
  const simt::Fault set("cudaSetDevice", cudaErrorInvalidDevice, 1);
  { const DeviceGuard device_1(DeviceId::cuda(1)); }  // The device before is made current again.
  EXPECT_EQ(set.times(), 1);
  EXPECT_EQ(cudaGetLastError(), cudaSuccess);
}

// Each call that a paced copy makes fails once: the copy names it, and the next copy succeeds.
TEST_F(SimtDeviceTest, CopyOfALinkWithARateThatFailsSaysWhichCallAndTheNextIsFine) {
  struct Case {
    const char* call;
    int spared;
  };
  const Allocation source = pinned(kBytes), target = pinned(kBytes), device = on_device(kBytes);
  std::memset(source.data(), 'p', kBytes);
  LinkCopy up(kCuda0, LinkDirection::kHostToDevice, {.gbps = 1, .latency_us = 100});
  LinkCopy down(kCuda0, LinkDirection::kDeviceToHost, {});
  for (const Case& fails :
       {Case{"cudaEventRecord", 0}, Case{"cudaEventRecord", 1}, Case{"cudaEventRecord", 2},
        Case{"cudaEventSynchronize", 0}, Case{"cudaMemcpyAsync", 0}}) {
    SCOPED_TRACE(testing::Message() << fails.call << " after " << fails.spared);
    Stream stream = Stream::owned(kCuda0, {"stream"});
    {
      const simt::Fault fault(fails.call, cudaErrorInvalidValue, fails.spared);
      EXPECT_THAT(error_of_copy(stream, up, device, source), HasSubstr(fails.call));
    }
    EXPECT_EQ(error_of_copy(stream, up, device, source), "");
    EXPECT_EQ(error_of_copy(stream, down, target, device), "");
    EXPECT_EQ(target.data()[0], 'p');
    std::memset(target.data(), '-', kBytes);
  }
}

// Threads must sleep on events created for that; this call is free to spin.
TEST_F(SimtDeviceTest, NoWaitMaySpin) {
  const simt::Fault spin("cudaStreamSynchronize", cudaErrorNotSupported);
  const Allocation source = pinned(kBytes), device = on_device(kBytes);
  fill_device_bytes(kCuda0, device.data(), std::byte{1}, kBytes);
  copy_device_bytes(kCuda0, source.data(), device.data(), kBytes);
  {
    LinkCopy up(kCuda0, LinkDirection::kHostToDevice, {});
    Stream stream = Stream::owned(kCuda0, {"stream"});
    EXPECT_EQ(error_of_copy(stream, up, device, source), "");
    stream.enqueue([](StreamRef ref) { wait_for(ref); });
    stream.record().wait();
    stream.synchronize();
  }
  EXPECT_EQ(spin.times(), 0);
}

TEST_F(SimtDeviceTest, StreamsThatAreRefusedNameTheCall) {
  const auto refusal = [](const char* call) {
    const simt::Fault fault(call, cudaErrorNotSupported);
    EXPECT_THAT([] { Stream::owned(kCuda0, {"stream"}); },
                ThrowsMessage<CudaError>(AllOf(HasSubstr(call), HasSubstr("NotSupported"))));
  };
  refusal("cudaDeviceGetStreamPriorityRange");
  refusal("cudaStreamCreateWithPriority");
  Stream stream = Stream::owned(kCuda0, {"stream"});
  const simt::Fault fault("cudaEventRecord", cudaErrorInvalidValue);
  EXPECT_THAT([&] { (void)stream.record(); },
              ThrowsMessage<CudaError>(HasSubstr("cudaEventRecord: cudaErrorInvalidValue (1)")));
}

TEST_F(SimtDeviceTest, WaitsThatFailNameTheCall) {
  Stream first = Stream::owned(kCuda0, {"first"}), second = Stream::owned(kCuda0, {"second"});
  const Allocation device = on_device(kBytes), source = pinned(kBytes);
  LinkCopy up(kCuda0, LinkDirection::kHostToDevice, {});
  Event behind;  // Outlives the hold: destroying it waits for the device.
  {
    const simt::Hold hold;  // The copy does not start: its event has not happened.
    first.enqueue([&](StreamRef ref) { up.copy(device.data(), source.data(), kBytes, ref); });
    behind = first.record();
    const simt::Fault fault("cudaStreamWaitEvent", cudaErrorInvalidResourceHandle);
    EXPECT_THAT([&] { second.wait(behind); },
                ThrowsMessage<CudaError>(HasSubstr("cudaStreamWaitEvent")));
  }
  first.synchronize();
  const Event event = first.record();
  const simt::Fault fault("cudaEventSynchronize", cudaErrorInvalidResourceHandle);
  EXPECT_THAT([&] { event.wait(); }, ThrowsMessage<CudaError>(HasSubstr("cudaEventSynchronize")));
}

TEST_F(SimtDeviceTest, ScratchThatIsRefusedSaysWhyAndComesWithTheNextCall) {
  Stream stream = Stream::owned(kCuda0, {"stream"});
  const auto take = [&] {
    stream.enqueue([](StreamRef ref) { EXPECT_NE(cuda::StreamScratch(ref).ticket(), nullptr); });
    stream.synchronize();
  };
  const auto free_bytes = [] {
    const DeviceGuard guard(kCuda0);
    std::size_t free = 0, total = 0;
    cudaMemGetInfo(&free, &total);
    return free;
  };
  const std::size_t before = free_bytes();
  {
    const simt::Fault fault("cudaMalloc", cudaErrorMemoryAllocation);
    EXPECT_THAT(what_of(take),
                HasSubstr("stream scratch: CUDA device 0 could not allocate 4194304 bytes"));
  }
  {
    const simt::Fault fault("cudaMalloc", cudaErrorNotPermitted);
    EXPECT_THAT(what_of(take), HasSubstr("cudaMalloc: cudaErrorNotPermitted"));
  }
  {
    const simt::Fault fault("cudaMemsetAsync", cudaErrorInvalidValue);
    EXPECT_THAT(what_of(take), HasSubstr("cudaMemsetAsync: cudaErrorInvalidValue"));
  }
  EXPECT_EQ(free_bytes(), before);
  EXPECT_NO_THROW(take());
}

__global__ void nothing() {}

TEST_F(SimtDeviceTest, LaunchThatIsRefusedNamesItsKernel) {
  const simt::Fault fault("cudaLaunchKernelEx", cudaErrorNotSupported);
  EXPECT_THAT(
      [] {
        run_on_stream(kCuda0, [](StreamRef ref) {
          cuda::launch("nothing", cuda::Kernel<nothing>(), {1, 1}, ref);
        });
      },
      ThrowsMessage<CudaError>(HasSubstr("nothing: cudaErrorNotSupported (801)")));
}

TEST_F(SimtDeviceTest, HostFunctionThatCallsCudaIsFound) {
  Stream stream = Stream::owned(kCuda0, {"stream"});
  void* pointer = nullptr;
  stream.enqueue([&](StreamRef ref) {
    simt::call_on_host(ref.native(), [&pointer] { cudaMalloc(&pointer, 8); });
  });
  EXPECT_THAT([&] { stream.synchronize(); }, ThrowsMessage<CudaError>(HasSubstr("host function")));
  EXPECT_EQ(pointer, nullptr);
  EXPECT_THAT(simt::take_findings(),
              ElementsAre(HasSubstr("cudaMalloc in a host function of a stream")));
}

}  // namespace
}  // namespace sluiceway::test
