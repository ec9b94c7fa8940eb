// WeightRing over a WeightSource: the bits are those of weights in host memory, for any time, order
// and thread of completed reads; slots are exact; no read is forgotten.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <memory>
#include <random>
#include <thread>

#include "kernels/base/error.h"
#include "runtime/device/device_memory.h"
#include "runtime/engine/stream/ring_hops.h"
#include "runtime/engine/stream/weight_ring.h"
#include "tests/support/memory_source.h"
#include "tests/support/ring_forward.h"
#include "tests/support/ring_model.h"

namespace sluiceway::test {
namespace {

using testing::AllOf;
using testing::ElementsAre;
using testing::Ge;
using testing::HasSubstr;
using testing::Le;
using testing::ThrowsMessage;

void all_to_source(RingModel& model) {
  for (int i = 0; i < std::ssize(model.uses); ++i) model.move_to_source(i);
}

// Waits for an event that must come; a test that never ends shows where.
template <class Done>
void wait_until(const Done& done) {
  const auto deadline = std::chrono::steady_clock::now() + std::chrono::seconds(20);
  while (!done()) {
    ASSERT_LT(std::chrono::steady_clock::now(), deadline);
    std::this_thread::yield();
  }
}

TEST(DiskRingTest, EveryBufferEqualsTheOracleWhateverIsReadAndWhenItCompletes) {
  std::random_device random;
  for (int round = 0; round < 16; ++round) {
    const std::uint64_t seed = random();
    SCOPED_TRACE(seed);
    RingModel model(seed);
    model.add_random(3 + static_cast<int>(model.rng().below(9)));
    if (round % 2 == 0) model.tie(0);
    for (int i = 0; i < std::ssize(model.uses); ++i) {
      if (round % 4 == 0 || model.rng().below(3) > 0) model.move_to_source(i);
    }
    MemorySource source(
        model.sourced(),
        {.seed = seed, .threads = 1 + round % 3, .before_end = [](std::size_t weight) {
           std::this_thread::sleep_for(std::chrono::microseconds(weight * 37 % 5 * 50));
         }});
    const auto depth = [&] { return 1 + static_cast<int>(model.rng().below(4)); };
    ZoRingOptions given = ring_options();
    given.depth = {depth(), depth(), depth()};
    given.source = &source;
    given.reads = depth();
    given.copy_lanes = 1 + round % 2;
    given.resident_room = round % 3 == 0 ? 6000 : 0;
    given.before_hop = [](LaneId lane, int use) {
      std::this_thread::sleep_for(std::chrono::microseconds((lane * 13 + use * 31) % 7 * 30));
    };
    RingForward forward(given, model);
    for (int step = 0; step < 8; ++step) {
      if (step % 5 == 3) {
        forward.begin_evaluation();
        forward.in_order();
        forward.ring.finish();
      }
      forward.begin(1 + static_cast<int>(model.rng().below(3)));
      if (round % 4 == 1) {  // Skipped, repeated, backwards, or no uses at all.
        for (std::int64_t k = model.rng().below(12); k > 0; --k) {
          forward.use(static_cast<int>(model.rng().below(forward.size())),
                      static_cast<int>(model.rng().below(forward.directions())));
        }
      } else {
        forward.in_order();
      }
      forward.commit();
    }
    int slots = 0;
    for (const SlotClass& c : forward.ring.plan().classes) slots += c.staging;
    EXPECT_LE(source.most_out(), std::min(given.reads, std::max(slots, 1)));
  }
}

// When skipped, use 0 has its pair, use 1 is on its way to the arrival slot, and use 2 to a staging
// slot.
TEST(DiskRingTest, SlotsOfASkippedUseAreWrittenWhenItIsThroughThem) {
  for (const int staging : {1, 2}) {
    const int wanted = staging + 2;
    RingModel model(11);
    for (int i = 0; i < 5; ++i) model.add(1000);
    all_to_source(model);
    MemorySource source(model.sourced(), {.open = false});
    std::vector<int> crossed;  // Written by one lane.
    ZoRingOptions given = ring_options(1);
    given.depth.staging = staging;
    given.source = &source;
    given.before_hop = [&](LaneId lane, int use) {
      if (lane == ring_lanes::kH2d) crossed.push_back(use);
    };
    {
      RingForward forward(given, model);
      wait_until([&] { return source.out() == staging; });
      std::thread opener([&] {
        const auto pause = [] {  // Time for an event that must not happen.
          std::this_thread::sleep_for(std::chrono::milliseconds(20));
        };
        EXPECT_TRUE(source.complete(0));
        pause();
        if (staging == 2) {
          for (const int weight : {2, wanted}) {
            wait_until([&] { return source.complete(static_cast<std::size_t>(weight)); });
          }
          pause();
        }
        source.open();
      });
      forward.begin();
      forward.use(wanted);
      opener.join();
      EXPECT_EQ(source.most_out(), staging);
      forward.commit();
    }
    crossed.resize(3);
    EXPECT_THAT(crossed, ElementsAre(0, 1, wanted));
  }
}

TEST(DiskRingTest, AStreamedUseIsReadOnceAPassAndAResidentOneOnce) {
  constexpr int kPasses = 4, kUses = 8;
  RingModel model(1);
  for (int i = 0; i < kUses - 1; ++i) model.add(1000);
  model.add(64, DType::kF32, 0, true);
  all_to_source(model);
  std::array<std::atomic<int>, kUses> reads{};
  MemorySource source(model.sourced(), {.before_end = [&](std::size_t w) { ++reads.at(w); }});
  ZoRingOptions given = ring_options();
  given.source = &source;
  given.resident_room = 4096;
  RingForward forward(given, model);
  std::uint64_t pass_bytes = 0, resident_bytes = 0;
  for (std::size_t i = 0; i < kUses; ++i) {
    const bool resident = forward.ring.is_resident(static_cast<int>(i));
    (resident ? resident_bytes : pass_bytes) += source.read_bytes(i);
  }
  EXPECT_EQ(resident_bytes, 4096U + 512);
  for (int pass = 0; pass < kPasses; ++pass) forward.run_step(3);
  // Reads of the next pass may have begun.
  EXPECT_THAT(forward.ring.take_disk_read(),
              AllOf(Ge(kPasses * pass_bytes + resident_bytes),
                    Le((kPasses + 1) * pass_bytes + resident_bytes)));
  for (int i = 0; i < kUses; ++i) {
    const int found = reads.at(static_cast<std::size_t>(i));
    const int passes = forward.ring.is_resident(i) ? 1 : kPasses;
    EXPECT_THAT(found, AllOf(Ge(passes), Le(passes == 1 ? 1 : kPasses + 1))) << "use " << i;
  }
}

// While pass t is open, and g therefore unknown, the first weights of pass t + 1 are read and
// cross.
TEST(DiskRingTest, TheNextPassIsReadAndCrossesBeforeThisOneIsCommitted) {
  constexpr int kUses = 6;
  RingModel model(6);
  for (int i = 0; i < kUses; ++i) model.add(1000);
  all_to_source(model);
  MemorySource source(model.sourced(), {});
  std::array<std::atomic<int>, kUses> crossed{};
  ZoRingOptions given = ring_options(2);
  given.source = &source;
  given.before_hop = [&](LaneId lane, int use) {
    if (lane == ring_lanes::kH2d) ++crossed.at(static_cast<std::size_t>(use));
  };
  RingForward forward(given, model);
  forward.begin();
  forward.in_order();
  wait_until([&] { return crossed[0] == 2 && crossed[1] == 2; });
  EXPECT_EQ(crossed[kUses - 1], 1);
  forward.commit();
  forward.run_step(2);
}

TEST(DiskRingTest, ReadsAreOutTogetherAndWhatComesFirstCrossesFirst) {
  RingModel model(2);
  for (int i = 0; i < 5; ++i) model.add(1000);
  all_to_source(model);
  MemorySource source(model.sourced(), {.open = false});
  std::atomic<int> first = -1;
  ZoRingOptions given = ring_options(3);
  given.depth.staging = 4;
  given.source = &source;
  given.reads = 3;
  given.before_hop = [&](LaneId lane, int use) {
    int none = -1;
    if (lane == ring_lanes::kH2d) first.compare_exchange_strong(none, use);
  };
  RingForward forward(given, model);
  wait_until([&] { return source.out() == 3; });
  EXPECT_TRUE(source.complete(2));
  wait_until([&] { return first != -1; });
  EXPECT_EQ(first, 2);
  wait_until([&] { return source.out() == 3; });
  source.open();
  forward.run_step();
  EXPECT_EQ(source.most_out(), 3);
}

TEST(DiskRingTest, StagingIsCountedExactlyAndRefusedWithBothByteCounts) {
  RingModel model(3);
  for (int i = 0; i < 4; ++i) model.add(1000);
  model.add(9000, DType::kF32, 0, true);
  all_to_source(model);
  MemorySource source(model.sourced(), {});
  ZoRingOptions given = ring_options(2);
  given.source = &source;
  const auto pinned = static_cast<std::size_t>(Tier::kPinned);
  const std::uint64_t resident = round_up(std::uint64_t{36000}, std::uint64_t{4096});
  {
    RingForward forward(given, model);
    forward.run_step(2);
    const SlotPlan& plan = forward.ring.plan();
    EXPECT_EQ(plan.staging_bytes, 2U * 4096);
    EXPECT_THAT(to_string(plan), HasSubstr("; 2 staging slots, 8192 bytes"));
    const EngineUse use = forward.ring.take_use();
    EXPECT_EQ(use.used[pinned], plan.staging_bytes);
    EXPECT_EQ(use.peak[pinned], resident);  // While the resident weight was read.
    EXPECT_EQ(use.used[static_cast<std::size_t>(Tier::kDevice)], plan.bytes + 36000);
    EXPECT_EQ(use.used[static_cast<std::size_t>(Tier::kHost)], 0U);
  }
  given.lanes.limits[pinned] = resident;
  RingForward(given, model).run_step();
  given.lanes.limits[pinned] = resident - 1;
  EXPECT_THAT([&] { ZoRing(given, model.uses); },
              ThrowsMessage<OutOfMemory>(AllOf(HasSubstr(concat(resident, " bytes")),
                                               HasSubstr(concat(resident - 1, " bytes")),
                                               HasSubstr("staging of resident weights"))));
  model.uses.pop_back();
  given.lanes.limits[pinned] = 8191;
  EXPECT_THAT([&] { ZoRing(given, model.uses); },
              ThrowsMessage<OutOfMemory>(AllOf(HasSubstr("8192 bytes"), HasSubstr("8191 bytes"),
                                               HasSubstr("staging for the ring"))));
}

// For streamed and resident weights; the error comes late, at once, or never.
TEST(DiskRingTest, AReadThatFailsComesOutNamedOfEveryCallAndTheRingCanGo) {
  struct Failing final : WeightSource {
    explicit Failing(WeightSource& in) : inner(in) {}
    std::uint64_t read_bytes(std::size_t weight) const override { return inner.read_bytes(weight); }
    void read(std::size_t weight, std::span<std::byte> into, Done done) override {
      if (weight != failing) return inner.read(weight, into, std::move(done));
      if (throws) throw IoError("planted", 5, "base", 0);
    }
    WeightSource& inner;
    std::size_t failing = SIZE_MAX;
    bool throws = true;
  };
  for (int how = 0; how < 3; ++how) {
    for (int failing = 0; failing < 5; ++failing) {
      SCOPED_TRACE(concat("way ", how, ", weight ", failing));
      RingModel model(8);
      for (int i = 0; i < 5; ++i) model.add(67, DType::kF32, 0, i == 4);
      all_to_source(model);
      const auto bad = static_cast<std::size_t>(failing);
      MemorySource source(model.sourced(), {.before_end = [&](std::size_t weight) {
                            if (how == 0 && weight == bad) throw IoError("planted", 5, "base", 0);
                          }});
      Failing at_once(source);
      if (how > 0) at_once.failing = bad;
      at_once.throws = how == 1;
      ZoRingOptions given = ring_options(1 + failing % 2);
      given.source = &at_once;
      const auto named =
          ThrowsMessage<Error>(AllOf(HasSubstr(how == 2 ? "" : "planted"), HasSubstr("lane disk"),
                                     HasSubstr(concat("w", failing))));
      expect_failure_comes_out(given, model, failing, named);
    }
  }
}

TEST(DiskRingTest, ItWaitsForReadsThatAreOutWhenItGoes) {
  for (int used = 0; used < 4; ++used) {
    RingModel model(9);
    for (int i = 0; i < 4; ++i) model.add(1031);
    all_to_source(model);
    MemorySource source(model.sourced(), {.open = false});
    ZoRingOptions given = ring_options(2);
    given.source = &source;
    std::thread opener;
    {
      RingForward forward(given, model);
      wait_until([&] { return source.out() == 2; });
      if (used > 0) source.open();
      if (used > 0) forward.begin(2);
      for (int i = 0; i < used; ++i) forward.use(i);
      opener = std::thread([&] {  // Mostly after the ring's destructor has begun.
        std::this_thread::sleep_for(std::chrono::milliseconds(5));
        source.open();
      });
    }
    EXPECT_EQ(source.out(), 0);
    opener.join();
  }
}

TEST(DiskRingTest, AWeightWithoutAPlaceOrWithTwoIsRefused) {
  RingModel model(4);
  model.add(100);
  const void* const host = model.uses[0].host;
  model.move_to_source(0);
  MemorySource source(model.sourced(), {});
  ZoRingOptions given = ring_options();
  EXPECT_THAT([&] { ZoRing(given, model.uses); },
              ThrowsMessage<InvalidArgument>(HasSubstr("the options have no source")));
  given.source = &source;
  model.uses[0].elements = 129;
  EXPECT_THAT(
      [&] { ZoRing(given, model.uses); },
      ThrowsMessage<InvalidArgument>(HasSubstr("w0 is read as 512 bytes, expected at least 516")));
  model.uses[0].elements = 100;
  model.uses[0].host = host;
  const auto refused =
      ThrowsMessage<InvalidArgument>(HasSubstr("either in memory or in the source"));
  EXPECT_THAT([&] { ZoRing(given, model.uses); }, refused);
  model.uses[0].host = nullptr;
  model.uses[0].source = -1;
  EXPECT_THAT([&] { ZoRing(given, model.uses); }, refused);
}

}  // namespace
}  // namespace sluiceway::test
