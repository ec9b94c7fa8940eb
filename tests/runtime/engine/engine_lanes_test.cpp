// EngineLanes: the counts and the depth of an engine's lanes, and how they end.
#include "runtime/engine/engine_lanes.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <condition_variable>
#include <memory>
#include <mutex>
#include <vector>

#include "kernels/base/error.h"
#include "tests/runtime/schedule/lanes_fixture.h"

namespace sluiceway::test {
namespace {

using testing::HasSubstr;
using testing::ThrowsMessage;

EngineLanes::Options unlimited_options() {
  EngineLanes::Options options(DeviceId::host());
  options.limits.fill(Budget::kUnlimited);
  return options;
}

const std::vector<LaneSpec> kTwoLanes = {{.name = "disk", .depth = 3},
                                         {"apply", LaneSpec::Runs::kOnDevice}};
constexpr LanePlan kPlan{.device_lane = 1};

TEST(EngineLanesTest, BytesAndStallsAreSinceTheLastLookAndPeaksSinceTheStart) {
  EngineLanes::Options options = unlimited_options();
  options.resident_bytes = 100;
  EngineLanes lanes(options, kTwoLanes, kPlan, 1);
  std::array<std::byte, 24> from{}, to{};
  lanes.d2h().copy(to.data(), from.data(), from.size(), StreamRef::host());
  { const Budget::Reservation gone = lanes.budget().reserve(Tier::kDevice, 50, "a moment"); }
  const EngineUse use = lanes.take_use();
  EXPECT_EQ(use.d2h_bytes, 24U);
  EXPECT_EQ(use.h2d_bytes, 0U);
  EXPECT_EQ(use.lane_seconds.size(), 2U);
  EXPECT_EQ(use.used[static_cast<std::size_t>(Tier::kDevice)], 100U);
  EXPECT_EQ(use.peak[static_cast<std::size_t>(Tier::kDevice)], 150U);
  EXPECT_EQ(lanes.take_use().d2h_bytes, 0U);
}

TEST(EngineLanesTest, AModelBeyondTheBudgetIsRefusedWithBothByteCounts) {
  EngineLanes::Options options = unlimited_options();
  options.limits[static_cast<std::size_t>(Tier::kDevice)] = 10;
  options.resident_bytes = 11;
  EXPECT_THAT(
      [&] { EngineLanes(options, kTwoLanes, kPlan, 1); },
      ThrowsMessage<OutOfMemory>(testing::AllOf(HasSubstr("11 bytes"), HasSubstr("10 bytes"))));
}

// Requests that stay in flight until the test ends them.
class Disk {
 public:
  void begin(const HopDone& done) {
    const std::lock_guard lock(mutex_);
    open_.push_back(done);
    most_ = std::max(most_, open_.size());
    changed_.notify_all();
  }
  void end_one(std::size_t when_open) {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [&] { return open_.size() >= when_open; });
    const HopDone done = open_.back();
    open_.pop_back();
    lock.unlock();
    done();
  }
  std::size_t most() const {
    const std::lock_guard lock(mutex_);
    return most_;
  }

 private:
  mutable std::mutex mutex_;
  std::condition_variable changed_;
  std::vector<HopDone> open_;
  std::size_t most_ = 0;
};

TEST(EngineLanesTest, ALaneHasAsManyHopsInFlightAsItIsDeep) {
  Disk disk;  // Outlives the lanes.
  EngineLanes lanes(unlimited_options(), kTwoLanes, kPlan, 5);
  for (int key = 0; key < 5; ++key) {
    Hop read;
    read.start = [&disk](StreamRef, const HopDone& done) { disk.begin(done); };
    Payload payload;
    payload.key = key;
    payload.name = "p";
    payload.hops.push_back(std::move(read));
    lanes.executor().submit(std::move(payload));
  }
  for (const std::size_t when_open : {3U, 3U, 3U, 2U, 1U}) disk.end_one(when_open);
  for (int key = 0; key < 5; ++key) lanes.wait(key);
  EXPECT_EQ(disk.most(), 3U);
}

TEST(EngineLanesTest, AcquireOnTheHostComesBackWhenThePayloadIsThrough) {
  EngineLanes lanes(unlimited_options(), kTwoLanes, kPlan, 1);
  int applied = 0;
  Payload payload;
  payload.name = "p";
  payload.hops.push_back({1, [&applied](StreamRef) { applied = 1; }});
  lanes.executor().submit(std::move(payload));
  lanes.acquire(0, StreamRef::host());
  EXPECT_EQ(applied, 1);
}

TEST(EngineLanesTest, StoppingDropsWhatIsHeldAndEndsWhatRuns) {
  EngineLanes lanes(unlimited_options(), kTwoLanes, kPlan, 1);
  const auto captured = std::make_shared<int>(0);
  Payload payload;
  payload.name = "held";
  payload.hops.push_back({0, [captured](StreamRef) { ++*captured; }});
  payload.hops.push_back({1, [captured](StreamRef) { *captured += 100; }});
  payload.hold_before = 1;
  lanes.executor().submit(std::move(payload));
  lanes.stop();
  EXPECT_LE(*captured, 1);
  EXPECT_EQ(captured.use_count(), 1);
}

}  // namespace
}  // namespace sluiceway::test
