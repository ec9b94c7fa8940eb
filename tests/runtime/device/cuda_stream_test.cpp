// Streams, events, links and memory of CUDA device 0. A machine without one fails here.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <array>
#include <atomic>
#include <cstring>
#include <future>
#include <numeric>
#include <optional>
#include <stdexcept>
#include <thread>
#include <vector>

#include "kernels/base/error.h"
#include "runtime/device/device_memory.h"
#include "runtime/device/link_copy.h"
#include "runtime/device/stream.h"
#include "runtime/device/time_mark.h"
#include "runtime/trace/trace.h"
#include "tests/runtime/device/cuda_bytes.h"
#include "tests/support/stream_work.h"

namespace sluiceway::test {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::ThrowsMessage;

class CudaStreamTest : public testing::Test {
 protected:
  static constexpr std::size_t kBytes = 1'000'003;
  Stream stream = Stream::owned(kCuda0, {"cuda"});
  LinkCopy up{kCuda0, LinkDirection::kHostToDevice, {}};
  LinkCopy down{kCuda0, LinkDirection::kDeviceToHost, {}};

  Stream::Task copy(LinkCopy& link, const Allocation& dst, const Allocation& src) {
    return [&](StreamRef ref) { link.copy(dst.data(), src.data(), dst.size(), ref); };
  }
};

TEST_F(CudaStreamTest, BytesCrossTheLinkAndComeBackCounted) {
  const Allocation source = pinned(kBytes);
  const Allocation device = on_device(kBytes);
  const Allocation target = pinned(kBytes);
  std::iota(source.data(), source.data() + kBytes, static_cast<char>(1));
  std::memset(target.data(), 0, kBytes);
  stream.enqueue(copy(up, device, source));
  stream.enqueue(copy(down, target, device));
  stream.synchronize();
  EXPECT_EQ(std::memcmp(source.data(), target.data(), kBytes), 0);
  EXPECT_EQ(up.bytes(), kBytes);
  EXPECT_EQ(down.bytes(), kBytes);
}

TEST_F(CudaStreamTest, DoneComesInOrderWithTheTimeTheDeviceTook) {
  const Allocation source = pinned(kBytes);
  const Allocation device = on_device(kBytes);
  std::vector<int> order;
  std::vector<double> elapsed_us;
  for (int i = 0; i < 10; ++i) {
    stream.enqueue(copy(up, device, source), [&, i](const Completion& completion) {
      order.push_back(i);
      elapsed_us.push_back(completion.end_us - completion.begin_us);
      EXPECT_EQ(completion.error, nullptr);
      EXPECT_LE(completion.end_us, now_us());
    });
  }
  stream.synchronize();
  EXPECT_THAT(order, ElementsAre(0, 1, 2, 3, 4, 5, 6, 7, 8, 9));
  EXPECT_THAT(elapsed_us, testing::Each(testing::Gt(0)));
}

// D1
TEST_F(CudaStreamTest, NeverWaitsForAThreadOfTheHost) {
  Gate gate;
  const auto refused = ThrowsMessage<InvalidArgument>(
      HasSubstr("cannot wait for a host event that has not happened"));
  EXPECT_THAT([&] { stream.wait(gate.event()); }, refused);
  stream.enqueue(
      [&](StreamRef ref) { EXPECT_THAT([&] { enqueue_wait(ref, gate.event()); }, refused); });
  stream.synchronize();
  gate.open();
  gate.event().wait();
  stream.wait(gate.event());
  stream.wait(Event());
  stream.synchronize();
}

TEST_F(CudaStreamTest, ATaskMayLetItsStreamWaitForAnother) {
  const Allocation source = pinned(kBytes);
  const Allocation device = on_device(kBytes);
  const Allocation target = pinned(kBytes);
  std::memset(source.data(), 'w', kBytes);
  Stream second = Stream::owned(kCuda0, {"second"});
  stream.enqueue(copy(up, device, source));
  second.enqueue([&, reached = stream.record()](StreamRef ref) {
    enqueue_wait(ref, reached);
    down.copy(target.data(), device.data(), kBytes, ref);
  });
  second.synchronize();
  EXPECT_EQ(target.data()[kBytes - 1], 'w');
}

TEST_F(CudaStreamTest, TasksOfAStreamWithItsOwnThreadSleepThereAndLeaveNothingOnTheDevice) {
  const Allocation source = pinned(kBytes);
  const Allocation device = on_device(kBytes);
  const Allocation target = pinned(kBytes);
  std::memset(source.data(), 't', kBytes);
  std::memset(target.data(), '-', kBytes);
  Stream own = Stream::owned(kCuda0, {.name = "own", .own_thread = true});
  EXPECT_EQ(own.device(), kCuda0);
  EXPECT_FALSE(stream.device_waits_for(own));
  stream.enqueue(copy(up, device, source));
  own.wait(stream.record());
  char seen = 0;
  std::thread::id ran_on;
  own.enqueue(
      [&](StreamRef ref) {
        ran_on = std::this_thread::get_id();
        down.copy(target.data(), device.data(), kBytes, ref);
      },
      [&](const Completion&) { seen = target.data()[kBytes - 1]; });
  const Event ended = own.record();
  ended.wait();
  EXPECT_EQ(seen, 't');
  EXPECT_NE(ran_on, std::this_thread::get_id());
  own.enqueue([](StreamRef) { throw InvalidArgument("thrown in a task"); });
  EXPECT_THAT([&] { own.synchronize(); }, ThrowsMessage<InvalidArgument>("thrown in a task"));
}

TEST_F(CudaStreamTest, WorkerWaitsForItsEvent) {
  const Allocation source = pinned(kBytes);
  const Allocation device = on_device(kBytes);
  const Allocation target = pinned(kBytes);
  std::memset(source.data(), 'x', kBytes);
  Stream host = Stream::host({"host"});
  char seen = 0;
  stream.enqueue(copy(up, device, source));
  stream.enqueue(copy(down, target, device));
  host.wait(stream.record());
  host.enqueue([&](StreamRef) { seen = target.data()[kBytes - 1]; });
  host.synchronize();
  EXPECT_EQ(seen, 'x');
}

TEST_F(CudaStreamTest, WaitsForAnotherCudaStream) {
  const Allocation source = pinned(kBytes);
  const Allocation device = on_device(kBytes);
  const Allocation target = pinned(kBytes);
  std::memset(source.data(), 'y', kBytes);
  Stream second = Stream::owned(kCuda0, {"second"});
  stream.enqueue(copy(up, device, source));
  second.wait(stream.record());
  second.enqueue(copy(down, target, device));
  second.synchronize();
  EXPECT_EQ(target.data()[kBytes - 1], 'y');
}

TEST_F(CudaStreamTest, TaskLivesUntilTheDeviceIsDoneWithIt) {
  Gate gate(kCuda0);
  gate.hold(stream);
  auto held = std::make_shared<int>(1);
  const std::weak_ptr<int> watch = held;
  stream.enqueue([held = std::move(held)](StreamRef) {});
  EXPECT_FALSE(watch.expired());
  gate.open();
  stream.synchronize();
  EXPECT_TRUE(watch.expired());
}

TEST_F(CudaStreamTest, OrdinalThatDoesNotExistIsRefused) {
  const DeviceId beyond = DeviceId::cuda(device_count());
  EXPECT_THAT([&] { check_device(beyond); },
              ThrowsMessage<InvalidArgument>(HasSubstr("expected 0 to")));
}

TEST_F(CudaStreamTest, FillAndCopyReachDeviceMemory) {
  const Allocation device = on_device(kBytes);
  std::vector<char> target(kBytes);
  fill_device_bytes(kCuda0, device.data(), std::byte{0x5A}, kBytes);
  copy_device_bytes(kCuda0, target.data(), device.data(), kBytes);
  EXPECT_THAT(target, testing::Each(0x5A));
}

TEST_F(CudaStreamTest, RefusalNamesAskedAndFreeBytes) {
  EXPECT_THAT([] { allocate_device_bytes(kCuda0, std::size_t{1} << 50); },
              ThrowsMessage<OutOfMemory>(HasSubstr("1125899906842624 bytes")));
}

TEST_F(CudaStreamTest, MarksTellTheTimeBetweenThemWhenBothArePassedAndAreRecordedAgain) {
  Stream other = Stream::owned(kCuda0, {"other"});
  const auto begin = make_time_mark(kCuda0), end = make_time_mark(kCuda0);
  const auto record = [](Stream& in, TimeMark& mark) {
    in.enqueue([&mark](StreamRef ref) { mark.record(ref); });
  };
  EXPECT_EQ(end->seconds_since(*begin), std::nullopt);
  for (int round = 0; round < 3; ++round) {
    Gate gate(kCuda0);
    record(stream, *begin);
    stream.synchronize();
    gate.hold(other);
    record(other, *end);
    EXPECT_EQ(end->seconds_since(*begin), std::nullopt);
    EXPECT_EQ(begin->seconds_since(*end), std::nullopt);
    sleep_ms(20);
    gate.open();
    other.synchronize();
    const double found_s = end->seconds_since(*begin).value();
    EXPECT_GE(found_s, 0.015);
    EXPECT_NEAR(begin->seconds_since(*end).value(), -found_s, 1e-6);
  }
}

}  // namespace
}  // namespace sluiceway::test
