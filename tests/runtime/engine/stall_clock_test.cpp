// StallClock with marks of a device that passes them when the test says so.
#include "runtime/engine/stall_clock.h"

#include <gtest/gtest.h>

#include <map>
#include <memory>
#include <optional>
#include <stdexcept>

namespace sluiceway::test {
namespace {

// Numbers the marks in the order of recording: 0, 1, ... Times are powers of two, so that their
// sums are exact.
struct Device {
  class Mark final : public TimeMark {
   public:
    explicit Mark(Device& device) : device_(device) { ++device.made; }
    void record(StreamRef) override {
      const bool is_free = !number_ || device_.passed.contains(*number_);
      EXPECT_TRUE(is_free) << "recorded again while still in a stream";
      number_ = device_.recorded++;
    }
    std::optional<double> seconds_since(const TimeMark& earlier) const override {
      const auto& begin = dynamic_cast<const Mark&>(earlier);
      if (!device_.passed.contains(number_.value()) ||
          !device_.passed.contains(begin.number_.value())) {
        return std::nullopt;
      }
      return device_.passed.at(*number_) - device_.passed.at(*begin.number_);
    }

   private:
    Device& device_;
    std::optional<int> number_;
  };

  int recorded = 0;
  int made = 0;
  std::map<int, double> passed;  // When, in seconds.
};

class StallClockTest : public testing::Test {
 protected:
  void wait() {
    clock.time_wait(StreamRef::host(), [] {});
  }
  void work() {
    clock.time_work(StreamRef::host(), [] {});
  }

  Device device;
  StallClock clock{[this] { return std::make_unique<Device::Mark>(device); }};
};

TEST_F(StallClockTest, AWaitCountsOnceWhenTheDeviceHasPassedItsEnd) {
  wait();
  EXPECT_EQ(clock.take(), 0);
  device.passed[0] = 1024;
  EXPECT_EQ(clock.take(), 0);
  device.passed[1] = 1024.25;
  EXPECT_EQ(clock.take(), 0.25);
  EXPECT_EQ(clock.take(), 0);
}

TEST_F(StallClockTest, WaitsThatTheDeviceHasNotComeToAreCarriedOn) {
  for (int i = 0; i < 3; ++i) wait();
  device.passed = {{0, 1}, {1, 2}, {2, 4}};
  EXPECT_EQ(clock.take(), 1);
  device.passed.insert({{3, 8}, {4, 16}, {5, 32}});
  EXPECT_EQ(clock.take(), 4 + 16);
}

TEST_F(StallClockTest, OnlyWhatTheLaneWorkedInBetweenIsNoStall) {
  work();  // 0, 1: before the wait.
  work();  // 2, 3: begins before it.
  wait();  // 4, 5
  work();  // 6, 7: within it.
  work();  // 8, 9: ends after it.
  work();  // 10, 11: after it.
  device.passed = {{0, 1},  {1, 2},  {2, 4},  {3, 10},  {4, 8},   {5, 64},
                   {6, 16}, {7, 24}, {8, 56}, {9, 128}, {10, 256}};
  EXPECT_EQ(clock.take(), (64 - 8) - (10 - 8) - (24 - 16) - (64 - 56));
}

TEST_F(StallClockTest, WorkThatIsNotDoneWhenTheWaitIsIsWorkUntilThen) {
  wait();
  work();
  device.passed = {{0, 1}, {2, 2}, {1, 4}};
  EXPECT_EQ(clock.take(), 1);
  device.passed[3] = 16;
  wait();  // 4, 5
  device.passed.insert({{4, 32}, {5, 33}});
  EXPECT_EQ(clock.take(), 1);
}

TEST_F(StallClockTest, WorkThatEndsWhileAThreadIsBlockedIsNoStall) {
  clock.time_wait(StreamRef::host(), [&] {
    work();  // 1, 2
    device.passed = {{0, 1}, {1, 2}, {2, 8}};
    work();  // 3, 4: settles what is over.
    device.passed.insert({{3, 16}, {4, 32}});
  });
  device.passed[5] = 64;
  EXPECT_EQ(clock.take(), (64 - 1) - (8 - 2) - (32 - 16));
}

TEST_F(StallClockTest, AWaitThatIsCalledOffDoesNotCount) {
  EXPECT_THROW(clock.time_wait(StreamRef::host(), [] { throw std::runtime_error("called off"); }),
               std::runtime_error);
  device.passed[0] = 1;
  wait();  // 1, 2
  device.passed.insert({{1, 2}, {2, 4}});
  EXPECT_EQ(clock.take(), 2);
}

// As with a training and an evaluating thread: the wait that began first ends last.
TEST_F(StallClockTest, WaitsOfTwoThreadsCountEachAndACalledOffOneTakesItselfAlone) {
  clock.time_wait(StreamRef::host(), [this] { wait(); });  // 0, 3 around 1, 2
  device.passed = {{0, 1}, {1, 2}, {2, 4}, {3, 8}};
  EXPECT_EQ(clock.take(), (8 - 1) + (4 - 2));
  const auto called_off = [this] {
    wait();  // 5, 6: after 4
    throw std::runtime_error("called off");
  };
  EXPECT_THROW(clock.time_wait(StreamRef::host(), called_off), std::runtime_error);
  device.passed.insert({{4, 16}, {5, 32}, {6, 64}});
  EXPECT_EQ(clock.take(), 64 - 32);
  wait();  // 7, 8
  device.passed.insert({{7, 128}, {8, 256}});
  EXPECT_EQ(clock.take(), 128);
}

TEST_F(StallClockTest, AStepLikeTheOneBeforeMakesNoMark) {
  constexpr int kWeights = 7;
  const auto step = [&] {
    for (int i = 0; i < kWeights; ++i) work();
    for (int i = 0; i < kWeights; ++i) wait();
  };
  const auto pass_all = [&] {
    for (int i = static_cast<int>(device.passed.size()); i < device.recorded; ++i) {
      device.passed[i] = i;
    }
  };
  step();  // The device is always one step late.
  for (int n = 0; n < 3; ++n) {
    step();
    pass_all();
  }
  const int made = device.made;
  EXPECT_LE(made, 2 * 4 * kWeights);
  for (int n = 0; n < 40; ++n) {
    step();
    pass_all();
    clock.take();
  }
  EXPECT_EQ(device.made, made);
}

}  // namespace
}  // namespace sluiceway::test
