// PinnedPool on every device: exact sizes, reuse only after the event, timeouts that list names.
#include "runtime/memory/pinned_pool.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <cstring>
#include <random>
#include <thread>
#include <utility>
#include <vector>

#include "kernels/base/error.h"
#include "runtime/memory/scribble.h"
#include "tests/support/backend.h"
#include "tests/support/stream_work.h"

namespace sluiceway::test {
namespace {

using std::chrono::milliseconds;
using testing::AllOf;
using testing::HasSubstr;
using testing::Not;
using testing::ThrowsMessage;

constexpr milliseconds kAtOnce{0};
constexpr milliseconds kLong{30'000};
constexpr std::size_t kSlab = 64 * 1024;

class PinnedPoolTest : public testing::TestWithParam<DeviceId> {
 protected:
  Budget budget{Budget::Limits{0, 0, 1 << 20, 0}};
  PinnedPool pool{budget, GetParam(), {.slab_bytes = kSlab}};
};

INSTANTIATE_TEST_SUITE_P(Devices, PinnedPoolTest, testing::ValuesIn(built_devices()), device_name);

TEST_P(PinnedPoolTest, SlabIsReservedAtConstructionAndGivenBackAtTheEnd) {
  EXPECT_EQ(budget.used(Tier::kPinned), kSlab);
  {
    const PinnedPool second(budget, GetParam(), {.slab_bytes = 5 * 4096});
    EXPECT_EQ(budget.used(Tier::kPinned), kSlab + 5 * 4096);
  }
  EXPECT_EQ(budget.used(Tier::kPinned), kSlab);
}

TEST_P(PinnedPoolTest, SlabOfHugePagesIsReservedAsTheWholePagesThatItTakes) {
  Budget roomy{Budget::Limits{0, 0, 8 << 20, 0}};
  const PinnedPool huge(roomy, GetParam(),
                        {.slab_bytes = kHugePageBytes + 4096, .pages = Pages::kHuge});
  EXPECT_EQ(roomy.used(Tier::kPinned), 2 * kHugePageBytes);
  EXPECT_EQ(huge.slab_bytes(), kHugePageBytes + 4096);
  EXPECT_EQ(huge.slab().size(), huge.slab_bytes());
  EXPECT_EQ(reinterpret_cast<std::uintptr_t>(huge.slab().data()) % kHugePageBytes, 0U);
  EXPECT_LE(huge.huge_bytes(), huge.slab_bytes());
  EXPECT_EQ(huge.huge_bytes(), huge_bytes(huge.slab().data(), huge.slab_bytes()));
}

TEST_P(PinnedPoolTest, LeasesAreInsideTheSlab) {
  const auto lease = pool.acquire(kSlab, "whole", kAtOnce);
  EXPECT_EQ(lease.bytes().data(), pool.slab().data());
  EXPECT_EQ(pool.slab().size(), kSlab);
}

TEST_P(PinnedPoolTest, LeaseHasExactlyTheBytesAskedForOnItsOwnCacheLine) {
  std::vector<PinnedPool::Lease> leases;
  for (const std::size_t bytes : {1UL, 63UL, 64UL, 65UL, 0UL, 1021UL}) {
    leases.push_back(pool.acquire(bytes, "piece", kAtOnce));
    EXPECT_EQ(leases.back().bytes().size(), bytes);
    EXPECT_EQ(reinterpret_cast<std::uintptr_t>(leases.back().bytes().data()) % 64, 0U);
    std::memset(leases.back().bytes().data(), static_cast<int>(bytes % 251), bytes);
  }
  for (const PinnedPool::Lease& lease : leases) {
    for (const std::byte b : lease.bytes()) {
      EXPECT_EQ(std::to_integer<std::size_t>(b), lease.bytes().size() % 251);
    }
  }
}

TEST_P(PinnedPoolTest, NothingIsRoundedToAPowerOfTwo) {
  constexpr std::size_t kThird = kSlab / 3 / 64 * 64;  // The next power of two is half the slab.
  const auto a = pool.acquire(kThird, "a", kAtOnce);
  const auto b = pool.acquire(kThird, "b", kAtOnce);
  const auto c = pool.acquire(kThird, "c", kAtOnce);
  EXPECT_EQ(pool.in_flight_bytes(), 3 * kThird);
}

TEST_P(PinnedPoolTest, EveryAlignmentIsMetAmongOthersOfOddSizes) {
  std::vector<PinnedPool::Lease> leases;
  for (const std::size_t bytes : {1UL, 65UL, 1021UL, 4096UL, 4097UL}) {
    for (const std::size_t alignment : {1UL, 64UL, 512UL, 4096UL}) {
      leases.push_back(pool.acquire(bytes, "piece", kAtOnce, alignment));
      const std::span<std::byte> piece = leases.back().bytes();
      const auto address = reinterpret_cast<std::uintptr_t>(piece.data());
      EXPECT_EQ(address % std::max(alignment, std::size_t{64}), 0U) << bytes << ", " << alignment;
      std::memset(piece.data(), static_cast<int>(leases.size()), bytes);
    }
  }
  for (std::size_t i = 0; i < leases.size(); ++i) {  // None overlaps another.
    for (const std::byte b : leases[i].bytes()) ASSERT_EQ(static_cast<std::size_t>(b), i + 1);
  }
}

TEST_P(PinnedPoolTest, WhatAnAlignmentSkipsIsLeasedToOthers) {
  constexpr std::size_t kPage = 4096;
  const auto small = pool.acquire(100, "small", kAtOnce);
  std::vector<PinnedPool::Lease> pages;
  for (std::size_t i = 1; i < kSlab / kPage; ++i) {
    pages.push_back(pool.acquire(kPage, "page", kAtOnce, kPage));
  }
  EXPECT_THAT([&] { (void)pool.acquire(kPage, "one more", kAtOnce, kPage); },
              ThrowsMessage<Timeout>(HasSubstr("4096 bytes (4.00 KiB) aligned to 4096 within")));
  const auto gap =
      pool.acquire(kPage - 128, "gap", kAtOnce);  // All that is left of the first page.
  EXPECT_EQ(gap.bytes().data() - small.bytes().data(), 128);
}

TEST_P(PinnedPoolTest, HolesBetweenAlignedPiecesJoinAgain) {
  std::vector<PinnedPool::Lease> leases;
  for (int i = 0; i < 8; ++i) {
    leases.push_back(pool.acquire(100, "odd", kAtOnce));
    leases.push_back(pool.acquire(4096, "page", kAtOnce, 4096));
  }
  for (std::size_t i = 0; i < leases.size(); i += 2) leases[i].retire(Event());
  for (std::size_t i = 1; i < leases.size(); i += 2) leases[i].retire(Event());
  EXPECT_EQ(pool.acquire(kSlab, "whole", kAtOnce, 4096).bytes().size(), kSlab);
}

TEST_P(PinnedPoolTest, AlignmentThatIsNoPowerOfTwoUpToAPageIsRefused) {
  for (const std::size_t alignment : {0UL, 3UL, 96UL, 4095UL, 8192UL}) {
    EXPECT_THAT([&] { (void)pool.acquire(1, "piece", kAtOnce, alignment); },
                ThrowsMessage<InvalidArgument>(
                    AllOf(HasSubstr("alignment to " + std::to_string(alignment) + " bytes"),
                          HasSubstr("power of two up to 4096"))));
  }
  EXPECT_EQ(pool.in_flight(), 0U);
}

TEST_P(PinnedPoolTest, WholeSlabCanBeLeasedAgainAndAgain) {
  for (int i = 0; i < 10; ++i) {
    const auto whole = pool.acquire(kSlab, "whole", kAtOnce);
    EXPECT_EQ(pool.in_flight(), 1U);
  }
  EXPECT_EQ(pool.in_flight(), 0U);
}

TEST_P(PinnedPoolTest, RequestLargerThanTheSlabIsRefusedAtOnce) {
  EXPECT_THAT([&] { auto none = pool.acquire(kSlab + 1, "moments", kLong); },
              ThrowsMessage<InvalidArgument>(
                  AllOf(HasSubstr("moments needs 65537 bytes"), HasSubstr("slab's 65536 bytes"))));
}

TEST_P(PinnedPoolTest, EmptySlabAndTooLargeSlabAreRefused) {
  EXPECT_THROW(PinnedPool(budget, GetParam(), {.slab_bytes = 0}), InvalidArgument);
  EXPECT_THROW(PinnedPool(budget, GetParam(), {.slab_bytes = 2 << 20}), OutOfMemory);
  EXPECT_EQ(budget.used(Tier::kPinned), kSlab);
}

TEST_P(PinnedPoolTest, TimeoutNamesTheLeasesInFlight) {
  const auto held = pool.acquire(kSlab - 1024, "gradient of layer 5", kAtOnce);
  EXPECT_THAT([&] { auto none = pool.acquire(2000, "moments", milliseconds(20)); },
              ThrowsMessage<Timeout>(AllOf(
                  HasSubstr("moments could not get 2000 bytes"), HasSubstr("within 20 ms"),
                  HasSubstr("largest free piece is 1024 bytes"), HasSubstr("gradient of layer 5"),
                  HasSubstr("generation 1"), Not(HasSubstr("retiring")))));
  EXPECT_EQ(pool.in_flight(), 1U);
}

TEST_P(PinnedPoolTest, TimeoutWithManyLeasesNamesTheLargestAndCountsTheRest) {
  std::vector<PinnedPool::Lease> leases;
  for (std::size_t i = 1; i <= 20; ++i) {
    leases.push_back(pool.acquire(i * 64, "piece " + std::to_string(i), kAtOnce));
  }
  EXPECT_THAT([&] { auto none = pool.acquire(kSlab, "all", kAtOnce); },
              ThrowsMessage<Timeout>(AllOf(HasSubstr("piece 20 1280 bytes"),
                                           HasSubstr("and 12 more"), Not(HasSubstr("piece 3 ")))));
}

TEST_P(PinnedPoolTest, WaitingAcquireIsServedWhenALeaseComesBack) {
  auto held = std::make_unique<PinnedPool::Lease>(pool.acquire(kSlab, "held", kAtOnce));
  std::thread giver([&] {
    std::this_thread::sleep_for(milliseconds(20));
    held.reset();
  });
  EXPECT_EQ(pool.acquire(kSlab, "waiting", kLong).bytes().size(), kSlab);
  giver.join();
}

TEST_P(PinnedPoolTest, RetiredPieceIsNotReusedBeforeItsEvent) {
  Stream stream = Stream::owned(GetParam(), {"copy"});
  Gate gate(GetParam());
  gate.hold(stream);
  auto lease = pool.acquire(kSlab, "copying", kAtOnce);
  lease.retire(stream.record());
  EXPECT_TRUE(lease.bytes().empty());
  EXPECT_EQ(lease.generation(), 0U);
  EXPECT_THAT(
      [&] { auto none = pool.acquire(1, "early", milliseconds(5)); },
      ThrowsMessage<Timeout>(HasSubstr("copying 65536 bytes (64.00 KiB) generation 1 (retiring)")));
  gate.open();
  const auto next = pool.acquire(kSlab, "next", kLong);
  EXPECT_EQ(next.generation(), 2U);
}

TEST_P(PinnedPoolTest, RetiringWithAnEventThatHasHappenedGivesBackAtOnce) {
  auto lease = pool.acquire(100, "done", kAtOnce);
  lease.retire(Event());
  EXPECT_EQ(pool.in_flight(), 0U);
  lease.retire(Event());  // An empty lease has nothing to retire.
}

TEST_P(PinnedPoolTest, DestructorWaitsForRetiringLeases) {
  std::atomic<bool> finished{false};
  Stream stream = Stream::owned(GetParam(), {"copy"});
  {
    PinnedPool local(budget, GetParam(), {.slab_bytes = 4096});
    auto lease = local.acquire(100, "copying", kAtOnce);
    stream.enqueue(task_of([&] {
      sleep_ms(20);
      finished = true;
    }));
    lease.retire(stream.record());
  }
  EXPECT_TRUE(finished);
}

TEST(PinnedPoolDeathTest, DestroyedWhileALeaseIsHeldItTerminatesAndNamesTheLease) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  EXPECT_DEATH(
      {
        Budget budget(Budget::Limits{0, 0, 1 << 20, 0});
        auto pool = std::make_unique<PinnedPool>(budget, DeviceId::host(),
                                                 PinnedPool::Config{.slab_bytes = 4096});
        const auto lease = pool->acquire(100, "forgotten", kAtOnce);
        pool.reset();
      },
      "destroyed while leases are held: forgotten 100 bytes generation 1");
}

TEST_P(PinnedPoolTest, MovedLeaseGivesBackOnce) {
  auto first = pool.acquire(100, "first", kAtOnce);
  auto second = std::move(first);
  EXPECT_TRUE(first.bytes().empty());  // NOLINT(bugprone-use-after-move): that is the promise.
  EXPECT_EQ(first.generation(), 0U);
  EXPECT_EQ(pool.in_flight(), 1U);
  second = pool.acquire(200, "second", kAtOnce);
  EXPECT_EQ(pool.in_flight(), 1U);
  EXPECT_EQ(pool.in_flight_bytes(), 200U);
}

TEST_P(PinnedPoolTest, GenerationTellsTwoUsesOfOnePieceApart) {
  auto first = pool.acquire(kSlab, "first", kAtOnce);
  const std::uint64_t old = first.generation();
  EXPECT_TRUE(pool.is_current(old));
  first.retire(Event());
  EXPECT_FALSE(pool.is_current(old));
  const auto second = pool.acquire(kSlab, "second", kAtOnce);
  EXPECT_FALSE(pool.is_current(old));
  EXPECT_TRUE(pool.is_current(second.generation()));
}

TEST_P(PinnedPoolTest, GenerationWrapsAroundPastZero) {
  PinnedPool last(budget, GetParam(), {.slab_bytes = 4096, .first_generation = UINT64_MAX});
  const auto a = last.acquire(64, "a", kAtOnce);
  const auto b = last.acquire(64, "b", kAtOnce);
  EXPECT_EQ(a.generation(), UINT64_MAX);
  EXPECT_EQ(b.generation(), 1U);
  EXPECT_FALSE(last.is_current(0));
  EXPECT_TRUE(last.is_current(UINT64_MAX));
}

TEST_P(PinnedPoolTest, GivenBackBytesAreScribbledOnWhereTheRunAsksForIt) {
  auto lease = pool.acquire(100, "stale", kAtOnce);
  const std::span<std::byte> stale = lease.bytes();
  std::memset(stale.data(), 0x11, stale.size());
  lease.retire(Event());
  EXPECT_EQ(stale[99], scribbles() ? kScribble : std::byte{0x11});
}

TEST_P(PinnedPoolTest, LeasesOfManyThreadsNeverOverlap) {
  constexpr int kThreads = 4;
  std::atomic<int> torn{0};
  Stream stream = Stream::owned(GetParam(), {"retire"});
  const auto work = [&](unsigned seed) {
    std::mt19937 random(seed);
    for (int i = 0; i < 300; ++i) {
      auto lease =
          pool.acquire(1 + random() % (kSlab / 5), "piece", kLong, std::size_t{64} << random() % 7);
      const auto mine = static_cast<std::byte>(random());
      std::fill(lease.bytes().begin(), lease.bytes().end(), mine);
      std::this_thread::yield();
      if (std::any_of(lease.bytes().begin(), lease.bytes().end(),
                      [mine](std::byte b) { return b != mine; })) {
        ++torn;
      }
      if (i % 3 == 0) lease.retire(stream.record());
    }
  };
  std::vector<std::thread> threads;
  for (unsigned t = 0; t < kThreads; ++t) threads.emplace_back(work, 20240611 + t);
  for (std::thread& thread : threads) thread.join();
  stream.synchronize();
  EXPECT_EQ(torn, 0);
  EXPECT_EQ(pool.in_flight(), 0U);
  EXPECT_EQ(pool.acquire(kSlab, "whole", kAtOnce).bytes().size(), kSlab);
}

}  // namespace
}  // namespace sluiceway::test
