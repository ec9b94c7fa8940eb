// WireSchedule: exact times, since no clock is involved.
#include "runtime/device/wire_schedule.h"

#include <gtest/gtest.h>

namespace sluiceway::test {
namespace {

constexpr std::int64_t kWire = 100'000;
constexpr std::int64_t kLatency = 10'000;
constexpr std::int64_t kStart = 5'000'000;

TEST(WireScheduleTest, FirstCopyStartsWhenItIsAskedFor) {
  WireSchedule wire;
  const auto slot = wire.take(kStart, kWire, kLatency);
  EXPECT_EQ(slot.off_wire_ns, kStart + kWire);
  EXPECT_EQ(slot.due_ns, kStart + kWire + kLatency);
}

TEST(WireScheduleTest, CopiesAskedForAtOnceQueueOnTheWireAndOverlapTheirLatency) {
  WireSchedule wire;
  for (int i = 1; i <= 5; ++i) {
    EXPECT_EQ(wire.take(kStart, kWire, kLatency).due_ns, kStart + i * kWire + kLatency);
  }
}

TEST(WireScheduleTest, ChainTakesTheSumOfItsTimesHoweverLateEachWakes) {
  WireSchedule wire;
  std::int64_t now = kStart;
  for (int i = 1; i <= 1000; ++i) {
    const auto slot = wire.take(now, kWire, kLatency);
    EXPECT_EQ(slot.due_ns, kStart + i * (kWire + kLatency));
    now = slot.due_ns + 50'000 + i % 7 * 1000;  // Woken late, asks for the next at once.
    wire.woke(slot, now);
  }
}

TEST(WireScheduleTest, OversleptTimeIsPaidBackOnce) {
  WireSchedule wire;
  const auto first = wire.take(kStart, kWire, 0);
  wire.woke(first, first.due_ns + 70'000);
  const std::int64_t later = first.due_ns + 900'000;
  EXPECT_EQ(wire.take(later, kWire, 0).due_ns, later - 70'000 + kWire);
  const std::int64_t much_later = later + 900'000;
  EXPECT_EQ(wire.take(much_later, kWire, 0).due_ns, much_later + kWire);
}

TEST(WireScheduleTest, PaidBackTimeNeverReachesIntoTheCopyBefore) {
  WireSchedule wire;
  const auto first = wire.take(kStart, kWire, 0);
  wire.woke(first, first.due_ns + 70'000);
  // Requested 20 us after the due time, by a thread that did not oversleep.
  EXPECT_EQ(wire.take(first.due_ns + 20'000, kWire, 0).due_ns, first.due_ns + kWire);
}

TEST(WireScheduleTest, NothingIsPaidBackWhenAnotherCopyHeldTheWire) {
  WireSchedule wire;
  const auto first = wire.take(kStart, kWire, 0);
  const auto second = wire.take(kStart, kWire, 0);
  wire.woke(first, first.due_ns + 70'000);
  wire.woke(second, second.due_ns);
  const std::int64_t later = second.due_ns + 500'000;
  EXPECT_EQ(wire.take(later, kWire, 0).due_ns, later + kWire);
}

TEST(WireScheduleTest, IdleWireSavesUpNothing) {
  WireSchedule wire;
  wire.take(kStart, kWire, 0);
  const std::int64_t later = kStart + 1'000'000'000;
  EXPECT_EQ(wire.take(later, kWire, 0).due_ns, later + kWire);
}

TEST(WireScheduleTest, LongHoldUpIsPaidBackOnlyUpToItsBound) {
  WireSchedule wire;
  const auto first = wire.take(kStart, kWire, 0);
  wire.woke(first, first.due_ns + 30'000'000);
  const std::int64_t later = first.due_ns + 30'000'000;
  EXPECT_EQ(wire.take(later, kWire, 0).due_ns, later - WireSchedule::kMostOversleptNs + kWire);
}

TEST(WireScheduleTest, ClockThatReadsBeforeTheDueTimeOwesNothing) {
  WireSchedule wire;
  const auto first = wire.take(kStart, kWire, 0);
  wire.woke(first, first.due_ns - 1000);
  EXPECT_EQ(wire.take(first.due_ns, kWire, 0).due_ns, first.due_ns + kWire);
}

}  // namespace
}  // namespace sluiceway::test
