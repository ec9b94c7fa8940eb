// Budget: limits that hold, errors that give both numbers, reservations that are returned once.
#include "runtime/memory/budget.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <memory>
#include <thread>
#include <utility>
#include <vector>

#include "kernels/base/error.h"

namespace sluiceway::test {
namespace {

using testing::AllOf;
using testing::HasSubstr;
using testing::ThrowsMessage;

class BudgetTest : public testing::Test {
 protected:
  Budget budget{Budget::Limits{1000, 2000, 3000, 4000}};  // Device, host, pinned, disk.
};

TEST_F(BudgetTest, TiersAreCountedApart) {
  const auto device = budget.reserve(Tier::kDevice, 7, "weights");
  const auto disk = budget.reserve(Tier::kDisk, 11, "states");
  EXPECT_EQ(budget.used(Tier::kDevice), 7U);
  EXPECT_EQ(budget.used(Tier::kHost), 0U);
  EXPECT_EQ(budget.used(Tier::kPinned), 0U);
  EXPECT_EQ(budget.used(Tier::kDisk), 11U);
  EXPECT_EQ(budget.limit(Tier::kPinned), 3000U);
}

TEST_F(BudgetTest, LastByteIsGivenAndOneMoreIsRefused) {
  const auto all = budget.reserve(Tier::kDevice, 1000, "everything");
  EXPECT_THROW(auto none = budget.reserve(Tier::kDevice, 1, "one byte"), OutOfMemory);
  const auto nothing = budget.reserve(Tier::kDevice, 0, "nothing");
  EXPECT_EQ(budget.used(Tier::kDevice), 1000U);
}

TEST_F(BudgetTest, RefusalNamesTierPurposeBothNumbersAndAHint) {
  const auto held = budget.reserve(Tier::kHost, 1500, "first");
  EXPECT_THAT([&] { auto none = budget.reserve(Tier::kHost, 600, "moments of layer 3"); },
              ThrowsMessage<OutOfMemory>(
                  AllOf(HasSubstr("host tier"), HasSubstr("moments of layer 3 needs 600 bytes"),
                        HasSubstr("only 500 bytes"), HasSubstr("1500 bytes"),
                        HasSubstr("2000 bytes (1.95 KiB)"), HasSubstr("raise budget.host"))));
  EXPECT_EQ(budget.used(Tier::kHost), 1500U);
  EXPECT_EQ(budget.peak(Tier::kHost), 1500U);
}

TEST_F(BudgetTest, RequestThatWouldWrapAroundIsRefused) {
  const auto held = budget.reserve(Tier::kDevice, 999, "held");
  EXPECT_THROW(auto none = budget.reserve(Tier::kDevice, UINT64_MAX, "all"), OutOfMemory);
  Budget unlimited(Budget::Limits{Budget::kUnlimited, 0, 0, 0});
  const auto most = unlimited.reserve(Tier::kDevice, UINT64_MAX - 1, "most");
  EXPECT_THROW(auto none = unlimited.reserve(Tier::kDevice, 2, "two more"), OutOfMemory);
  EXPECT_THROW(auto none = unlimited.reserve(Tier::kHost, 1, "no room at all"), OutOfMemory);
}

TEST_F(BudgetTest, DestructionGivesBackAndThePeakStays) {
  {
    const auto held = budget.reserve(Tier::kPinned, 2500, "ring");
    EXPECT_EQ(held.bytes(), 2500U);
  }
  const auto again = budget.reserve(Tier::kPinned, 100, "ring");
  EXPECT_EQ(budget.used(Tier::kPinned), 100U);
  EXPECT_EQ(budget.peak(Tier::kPinned), 2500U);
}

TEST_F(BudgetTest, MovedReservationGivesBackOnce) {
  auto first = budget.reserve(Tier::kDevice, 300, "first");
  {
    const Budget::Reservation moved = std::move(first);
    EXPECT_EQ(first.bytes(), 0U);  // NOLINT(bugprone-use-after-move): that is the promise.
    EXPECT_EQ(moved.bytes(), 300U);
    EXPECT_EQ(budget.used(Tier::kDevice), 300U);
  }
  EXPECT_EQ(budget.used(Tier::kDevice), 0U);
}

TEST_F(BudgetTest, AssignmentGivesBackWhatWasHeldBefore) {
  auto first = budget.reserve(Tier::kDevice, 300, "first");
  first = budget.reserve(Tier::kHost, 40, "second");
  EXPECT_EQ(budget.used(Tier::kDevice), 0U);
  EXPECT_EQ(budget.used(Tier::kHost), 40U);
  first = Budget::Reservation();
  EXPECT_EQ(budget.used(Tier::kHost), 0U);
}

TEST_F(BudgetTest, SelfAssignmentKeepsTheBytes) {
  auto held = budget.reserve(Tier::kDevice, 300, "held");
  auto& same = held;
  held = std::move(same);
  EXPECT_EQ(held.bytes(), 300U);
  EXPECT_EQ(budget.used(Tier::kDevice), 300U);
}

TEST_F(BudgetTest, ReservationMayOutliveTheBudget) {
  auto own = std::make_unique<Budget>(Budget::Limits{1000, 0, 0, 0});
  const auto held = own->reserve(Tier::kDevice, 10, "held");
  own.reset();
  EXPECT_EQ(held.bytes(), 10U);
}

TEST_F(BudgetTest, ConcurrentReservationsNeverPassTheLimit) {
  constexpr int kThreads = 4;
  constexpr int kRounds = 3000;
  std::atomic<std::uint64_t> held{0};
  std::atomic<int> refused{0};
  std::atomic<bool> passed{false};
  const auto work = [&](int seed) {
    for (int i = 0; i < kRounds; ++i) {
      const auto bytes = static_cast<std::uint64_t>(200 + (seed * 131 + i * 37) % 400);
      try {
        const auto mine = budget.reserve(Tier::kDevice, bytes, "thread");
        if (held.fetch_add(bytes) + bytes > 1000) passed = true;
        if (i % 8 == 0) std::this_thread::yield();
        held.fetch_sub(bytes);
      } catch (const OutOfMemory&) {
        ++refused;
      }
    }
  };
  std::vector<std::thread> threads;
  for (int t = 0; t < kThreads; ++t) threads.emplace_back(work, t);
  for (std::thread& thread : threads) thread.join();
  EXPECT_FALSE(passed);
  EXPECT_LE(budget.peak(Tier::kDevice), 1000U);
  EXPECT_EQ(budget.used(Tier::kDevice), 0U);
  EXPECT_LT(refused, kThreads * kRounds);
}

}  // namespace
}  // namespace sluiceway::test
