// WeightRing: acquired weights equal perturb() and materialise() of the base, bit for bit, in any
// order, at any depth; and no lane waits for an action of the caller.
#include "runtime/engine/stream/weight_ring.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <array>
#include <atomic>
#include <chrono>
#include <functional>
#include <random>
#include <thread>

#include "kernels/base/error.h"
#include "runtime/engine/stream/ring_hops.h"
#include "tests/support/ring_forward.h"
#include "tests/support/ring_model.h"

namespace sluiceway::test {
namespace {

using testing::AllOf;
using testing::AnyOf;
using testing::HasSubstr;
using testing::ThrowsMessage;

using Forward = RingForward;

constexpr StreamRef kHost = StreamRef::host();

TEST(WeightRingTest, EveryBufferEqualsTheOracleAtAnyDepthWithAnyLanesAndDelays) {
  std::random_device random;
  for (int round = 0; round < 12; ++round) {
    const std::uint64_t seed = random();
    SCOPED_TRACE(seed);
    RingModel model(seed);
    model.add_random(1 + static_cast<int>(model.rng().below(12)));
    if (round % 2 == 0) model.tie(0);
    ZoRingOptions given = ring_options(round % 3 == 0 ? 8 : 2);
    given.depth.arrivals = 1 + static_cast<int>(model.rng().below(given.depth.pairs));
    given.copy_lanes = round % 4 < 2 ? 1 : 4;
    given.resident_room = static_cast<std::uint64_t>(model.rng().below(12000));
    given.lanes.h2d = {.gbps = 0.2, .latency_us = static_cast<double>(model.rng().below(60))};
    given.before_hop = [](LaneId lane, int use) {  // At no time that a step could rely on.
      std::this_thread::sleep_for(std::chrono::microseconds((lane * 13 + use * 31) % 7 * 40));
    };
    given.family = round % 2 == 0 ? NoiseFamily::kRademacher : NoiseFamily::kGaussian;
    Forward forward(given, model);
    for (int step = 0; step < 12; ++step) {
      if (step % 5 == 3) {
        forward.begin_evaluation();
        forward.in_order();
        forward.ring.finish();
      }
      forward.begin(round % 4 == 3 ? 1 : 1 + static_cast<int>(model.rng().below(3)));
      forward.in_order([&] {
        if (model.rng().below(4) == 0) std::this_thread::sleep_for(std::chrono::microseconds(200));
      });
      forward.commit();
    }
    EXPECT_EQ(forward.ring.take_use().d2h_bytes, 0U);
  }
}

TEST(WeightRingTest, AnyOtherOrderIsServedWithTheSameBits) {
  std::random_device random;
  for (int round = 0; round < 12; ++round) {
    const std::uint64_t seed = random();
    SCOPED_TRACE(seed);
    RingModel model(seed);
    model.add_random(9);
    ZoRingOptions given = ring_options(1 + round % 4);
    given.copy_lanes = 1 + round % 2;
    given.resident_room = round % 3 == 0 ? 5000 : 0;
    Forward forward(given, model);
    for (int step = 0; step < 10; ++step) {  // Skipped, repeated, backwards, or no uses at all.
      forward.begin(1 + static_cast<int>(model.rng().below(3)));
      for (std::int64_t k = model.rng().below(14); k > 0; --k) {
        forward.use(static_cast<int>(model.rng().below(9)),
                    static_cast<int>(model.rng().below(forward.directions())));
      }
      forward.commit();
    }
    forward.run_step(3);
  }
}

// Also for all directions, for a module with several uses, and within the same slots.
TEST(WeightRingTest, AStreamedUseCrossesOnceAPassAndAResidentOneInNone) {
  for (const int directions : {1, 3, 8}) {
    constexpr int kPasses = 5;
    RingModel model(1);
    for (int i = 0; i < 8; ++i) {
      model.add(1000);
      if (i % 3 == 1) model.join_module();
    }
    model.add(64, DType::kF32, 0, true);
    model.join_module();
    ZoRingOptions given = ring_options(1);
    given.resident_room = 2 * 4096;
    std::array<std::atomic<int>, 9> crossings{}, perturbed{};
    given.before_hop = [&](LaneId lane, int use) {
      ++(lane == ring_lanes::kH2d ? crossings : perturbed).at(static_cast<std::size_t>(use));
    };
    Forward forward(given, model);
    const std::uint64_t bytes = forward.ring.budget().used(Tier::kDevice);
    for (int pass = 0; pass < kPasses - 1; ++pass) forward.run_step(directions);
    forward.begin_evaluation();
    forward.in_order();
    forward.ring.finish();
    int resident = 0;
    for (int use = 0; use < 9; ++use) {
      const int found = crossings.at(static_cast<std::size_t>(use));
      EXPECT_EQ(perturbed.at(static_cast<std::size_t>(use)), (kPasses - 1) * directions + 1);
      if (forward.ring.is_resident(use)) {
        ++resident;
        EXPECT_EQ(found, 1) << "use " << use;  // When the ring was made.
      } else {                                 // The next pass may have begun to cross.
        EXPECT_THAT(found, AnyOf(kPasses, kPasses + 1)) << "use " << use;
      }
    }
    EXPECT_EQ(resident, 3);
    EXPECT_TRUE(forward.ring.is_resident(8));
    EXPECT_EQ(forward.ring.take_use().d2h_bytes, 0U);
    EXPECT_EQ(forward.ring.budget().peak(Tier::kDevice), bytes);
  }
}

// The arrival of the slot's next weight waits for a direction that another lane finishes late.
TEST(WeightRingTest, AnArrivalStaysUntilEveryDirectionIsPerturbed) {
  RingModel model(10);
  for (int i = 0; i < 3; ++i) model.add(1031);
  ZoRingOptions given = ring_options(1);
  given.depth.pairs = 3;
  given.copy_lanes = 3;
  std::atomic<bool> open = false;
  std::atomic<int> crossed = 0, perturbed = 0;
  given.before_hop = [&](LaneId lane, int use) {
    if (lane == ring_lanes::kH2d) ++crossed;
    if (lane == ring_lanes::kCopies && use == 0 && ++perturbed == 1) open.wait(false);
  };
  Forward forward(given, model);
  forward.begin(3);
  while (perturbed < 3) std::this_thread::yield();
  std::this_thread::sleep_for(std::chrono::milliseconds(20));
  EXPECT_EQ(crossed, 1);
  open = true;
  open.notify_all();
  forward.in_order();
  forward.commit();
}

TEST(WeightRingTest, OneWeightAloneAndOneMuchLargerThanTheOthers) {
  for (const std::int64_t large : {0, 100003}) {
    RingModel model(5);
    model.add(67);
    if (large > 0) model.add(large), model.add(66), model.add(65);
    Forward forward(ring_options(large > 0 ? 2 : 1), model);
    for (int step = 0; step < 20; ++step) forward.run_step();
    EXPECT_EQ(forward.ring.plan().classes.size(), large > 0 ? 2U : 1U);
  }
}

// While pass t is open, and g therefore unknown, the first weights of pass t + 1 cross.
TEST(WeightRingTest, TheNextPassCrossesTheLinkBeforeThisOneIsCommitted) {
  RingModel model(6);
  for (int i = 0; i < 6; ++i) model.add(1000);
  Forward forward(ring_options(2), model);
  std::uint64_t bytes = 0;
  for (const StreamedWeight& weight : model.uses) bytes += weight.bytes();
  forward.run_step();
  forward.begin();
  forward.in_order();
  std::uint64_t come = 0;
  const auto crossed = [&] { return (come += forward.ring.take_use().h2d_bytes) > 2 * bytes; };
  const auto deadline = std::chrono::steady_clock::now() + std::chrono::seconds(20);
  while (!crossed() && std::chrono::steady_clock::now() < deadline) std::this_thread::yield();
  EXPECT_GT(come, 2 * bytes);
  forward.commit();
  forward.run_step();
}

TEST(WeightRingTest, ARingThatDoesNotFitIsRefusedWithBothByteCounts) {
  RingModel model(2);
  for (int i = 0; i < 4; ++i) model.add(1024);
  ZoRingOptions given = ring_options(2);
  given.lanes.limits[static_cast<std::size_t>(Tier::kDevice)] = 20000;
  EXPECT_THAT([&] { ZoRing(given, model.uses); },
              ThrowsMessage<OutOfMemory>(AllOf(HasSubstr("24576 bytes"), HasSubstr("20000 bytes"),
                                               HasSubstr("the ring of 1 classes"))));
  given.lanes.limits[static_cast<std::size_t>(Tier::kDevice)] = 24576 + 4096 + 100;
  given.resident_room = ZoRingOptions::kWhatIsLeft;
  Forward forward(given, model);
  int resident = 0;
  for (int i = 0; i < 4; ++i) resident += forward.ring.is_resident(i) ? 1 : 0;
  EXPECT_EQ(resident, 1);
  forward.run_step();
}

TEST(WeightRingTest, CallsOutOfTheirPlaceAreRefusedAndChangeNothing) {
  RingModel model(3);
  for (int i = 0; i < 4; ++i) model.add(67);
  Forward forward(ring_options(1), model);
  ZoRing& ring = forward.ring;
  EXPECT_THAT([&] { ring.acquire(0, 0, Side::kPlus, kHost); },
              ThrowsMessage<InvalidArgument>(HasSubstr("no pass has begun")));
  EXPECT_THAT([&] { ring.finish(); }, ThrowsMessage<InvalidArgument>(HasSubstr("no pass")));
  EXPECT_THAT([&] { ring.begin(nullptr); }, ThrowsMessage<InvalidArgument>(HasSubstr("0 rounds")));
  forward.begin(2);
  EXPECT_THAT([&] { ring.acquire(0, 2, Side::kPlus, kHost); },
              ThrowsMessage<InvalidArgument>(HasSubstr("round is 2, expected 0 to 1")));
  EXPECT_THAT([&] { ring.begin_step({}); },
              ThrowsMessage<InvalidArgument>(HasSubstr("pass 1 has not ended; call finish()")));
  EXPECT_THAT([&] { ring.acquire(4, 0, Side::kPlus, kHost); },
              ThrowsMessage<InvalidArgument>(HasSubstr("use is 4, expected 0 to 3")));
  EXPECT_THAT([&] { ring.release(0, 0, kHost); },
              ThrowsMessage<InvalidArgument>(HasSubstr("w0 is not acquired")));
  forward.acquire(0);
  EXPECT_THAT([&] { ring.release(0, 1, kHost); },
              ThrowsMessage<InvalidArgument>(HasSubstr("not acquired in round 1")));
  EXPECT_THAT([&] { ring.acquire(1, 0, Side::kPlus, kHost); },
              ThrowsMessage<InvalidArgument>(HasSubstr("the 1 pairs of slots for w1")));
  EXPECT_THAT([&] { ring.finish(); }, ThrowsMessage<InvalidArgument>(HasSubstr("w0 is acquired")));
  forward.check_and_release();
  for (int i = 1; i < 4; ++i) forward.use(i);
  forward.commit();
  forward.run_step();
}

TEST(WeightRingTest, StoragesThatOverlapInPartAreRefused) {
  RingModel model(4);
  model.add(100);
  model.uses.push_back(model.uses[0]);
  model.uses[1].host = static_cast<const std::byte*>(model.uses[0].host) + 4;
  model.uses[1].elements = 50;
  EXPECT_THAT([&] { ZoRing(ring_options(), model.uses); },
              ThrowsMessage<InvalidArgument>(HasSubstr("begins 396 bytes before another ends")));
  model.uses[1].host = model.uses[0].host;
  EXPECT_THAT([&] { ZoRing(ring_options(), model.uses); },
              ThrowsMessage<InvalidArgument>(HasSubstr("share their storage")));
}

// In either lane, whatever waits then for arrivals, pairs or the next pass.
TEST(WeightRingTest, AFailureInALaneComesOutNamedOfEveryCallAndTheRingCanGo) {
  for (const LaneId lane : {ring_lanes::kH2d, ring_lanes::kCopies}) {
    for (int failing = 0; failing < 5; ++failing) {
      RingModel model(8);
      for (int i = 0; i < 5; ++i) model.add(67);
      ZoRingOptions given = ring_options(1 + failing % 2);
      given.before_hop = [&](LaneId at, int use) {
        if (at == lane && use == failing) throw Error("planted");
      };
      const auto named =
          ThrowsMessage<Error>(AllOf(HasSubstr("planted"), HasSubstr(concat("w", failing))));
      expect_failure_comes_out(given, model, failing, named);
    }
  }
}

TEST(WeightRingTest, ItMayGoInTheMiddleOfAStep) {
  for (int used = 0; used < 6; ++used) {
    RingModel model(9);
    for (int i = 0; i < 6; ++i) model.add(1031);
    ZoRingOptions given = ring_options(1 + used % 3);
    given.lanes.h2d = {.gbps = 0.05, .latency_us = 0};
    Forward forward(given, model);
    if (used == 0) continue;
    forward.begin();
    for (int i = 0; i < used - 1; ++i) forward.use(i);
    forward.acquire(used - 1);
  }
}

}  // namespace
}  // namespace sluiceway::test
