// WeightRing over masters: acquired weights, and host memory afterwards, equal materialise() step
// by step, in any order of turns; and each weight goes back once per step.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <memory>
#include <random>
#include <thread>

#include "kernels/base/error.h"
#include "runtime/engine/stream/ring_hops.h"
#include "tests/support/written_run.h"

namespace sluiceway::test {
namespace {

using testing::AllOf;
using testing::HasSubstr;
using testing::ThrowsMessage;

// Adds weights, some of them f32 masters that a forward reads in bf16.
void add_random(RingModel& model, int count) {
  model.add_random(count);
  for (StreamedWeight& use : model.uses) {
    if (use.dtype() == DType::kF32 && model.rng().below(2) == 0) use.computed = DType::kBF16;
  }
}

TEST(WrittenRingTest, EveryBufferAndEveryMasterEqualsTheOracleAtAnyDepthWithAnyLanesAndDelays) {
  std::random_device random;
  for (int round = 0; round < 12; ++round) {
    const std::uint64_t seed = random();
    SCOPED_TRACE(seed);
    Rng rng(seed);
    ZoRingOptions given = ring_options(round % 3 == 0 ? 8 : 2);
    given.depth.arrivals = 1 + static_cast<int>(rng.below(given.depth.pairs));
    given.copy_lanes = round % 4 < 2 ? 1 : 4;
    given.resident_room = static_cast<std::uint64_t>(rng.below(12000));
    given.lanes.h2d = {.gbps = 0.2, .latency_us = static_cast<double>(rng.below(60))};
    given.lanes.d2h = {.gbps = 0.1, .latency_us = static_cast<double>(rng.below(90))};
    given.before_hop = [](LaneId lane, int use) {  // At no time that a step could rely on.
      std::this_thread::sleep_for(std::chrono::microseconds((lane * 13 + use * 31) % 7 * 40));
    };
    given.family = round % 2 == 0 ? NoiseFamily::kRademacher : NoiseFamily::kGaussian;
    WrittenRun run(given, seed, [&](RingModel& model) {
      add_random(model, 1 + static_cast<int>(model.rng().below(12)));
      if (round % 2 == 0) model.tie(0);
    });
    for (int step = 0; step < 10; ++step) {
      if (step % 5 == 3) run.run_evaluation();
      if (rng.below(4) == 0) run.expect_flushed();
      run.run_step(round % 4 == 3 ? 1 : 1 + static_cast<int>(rng.below(3)));
    }
    run.expect_flushed();
  }
}

TEST(WrittenRingTest, AnyOtherOrderIsServedWithTheSameBits) {
  std::random_device random;
  for (int round = 0; round < 12; ++round) {
    const std::uint64_t seed = random();
    SCOPED_TRACE(seed);
    Rng rng(seed);
    ZoRingOptions given = ring_options(1 + round % 4);
    given.copy_lanes = 1 + round % 2;
    given.resident_room = round % 3 == 0 ? 5000 : 0;
    WrittenRun run(given, seed, [](RingModel& model) {
      add_random(model, 9);
      model.tie(0);
    });
    for (int step = 0; step < 10; ++step) {  // Skipped, repeated, backwards, or no uses at all.
      run.forward->begin(1 + static_cast<int>(rng.below(3)));
      for (std::int64_t k = rng.below(14); k > 0; --k) {
        run.forward->use(static_cast<int>(rng.below(10)),
                         static_cast<int>(rng.below(run.forward->directions())));
      }
      rng.below(5) == 0 ? run.forward->ring.finish() : run.commit();  // Now and then makes no step.
      if (rng.below(4) == 0) run.expect_flushed();
    }
    run.run_step(3);
    run.expect_flushed();
  }
}

TEST(WrittenRingTest, AStreamedWeightGoesBackOnceAStepAndAResidentOneWithAFlush) {
  for (const int directions : {1, 3}) {
    constexpr int kSteps = 5;
    ZoRingOptions given = ring_options(2);
    given.resident_room = 2 * 4096;
    WrittenRun run(given, 1, [](RingModel& model) {
      for (int i = 0; i < 8; ++i) {
        model.add(1000, i % 2 == 0 ? DType::kF32 : DType::kBF16);
        if (i % 3 == 1) model.join_module();
      }
      model.add(64, DType::kF32, 0, true);
      model.join_module();
      model.tie(1);
    });
    const std::uint64_t streamed = run.streamed_bytes();
    std::uint64_t resident = 0;
    for (const std::size_t i : run.first) resident += run.model.uses[i].bytes();
    resident -= streamed;
    EXPECT_GT(resident, 64U * 4);
    ZoRing& ring = run.forward->ring;
    for (int step = 0; step < kSteps; ++step) run.run_step(directions);
    run.run_evaluation();  // Writes the last step.
    run.run_evaluation();  // Has nothing to write.
    run.expect_flushed();
    EXPECT_EQ(ring.take_use().d2h_bytes, kSteps * streamed + resident);
    run.expect_flushed();
    EXPECT_EQ(ring.take_use().d2h_bytes, 0U);
    run.run_step(directions);
    run.expect_flushed();  // In host memory, for streamed weights.
    EXPECT_EQ(ring.take_use().d2h_bytes, resident);
  }
}

// Both uses of a tied weight have crossed before the step to be written into them is known; or the
// second one crosses late, when the first is about to go back.
TEST(WrittenRingTest, ATiedWeightThatCrossesLateIsGivenNoStepTwice) {
  for (const int late : {0, 4}) {
    ZoRingOptions given = ring_options(8);
    given.before_hop = [&](LaneId lane, int use) {
      if (lane == ring_lanes::kH2d && use == late) {
        std::this_thread::sleep_for(std::chrono::milliseconds(2));
      }
    };
    WrittenRun run(given, 3, [](RingModel& model) {
      for (int i = 0; i < 4; ++i) model.add(1031, i == 0 ? DType::kBF16 : DType::kF32);
      model.tie(0);
    });
    for (int step = 0; step < 8; ++step) run.run_step();
    run.expect_flushed();
  }
}

TEST(WrittenRingTest, WeightsThatAnotherRingGoesOnWithHaveEveryStepOnce) {
  WrittenRun run(ring_options(2), 11, [](RingModel& model) { add_random(model, 7); });
  for (int ring = 0; ring < 3; ++ring) {
    for (int step = 0; step < 3; ++step) run.run_step(2);
    ZoRingOptions given = ring_options(1 + ring);
    given.masters = &run.masters;
    given.resident_room = 4096;
    run.expect_flushed();
    std::vector<StreamedWeight> uses = run.model.uses;
    run.forward.reset();
    run.forward = std::make_unique<RingForward>(given, run.oracle, uses);
  }
}

// A copy that left for the device before a step may be older than another copy of its weight.
TEST(WrittenRingTest, ACopyThatWaitsWhileAnotherIsMovedOnIsGivenEveryStep) {
  std::random_device random;
  for (int round = 0; round < 40; ++round) {
    const std::uint64_t seed = random();
    SCOPED_TRACE(seed);
    Rng rng(seed);
    WrittenRun run(ring_options(4), seed, [](RingModel& model) {
      for (int i = 0; i < 3; ++i) model.add(67);
      model.tie(1);
    });
    for (int step = 0; step < 12; ++step) {
      run.forward->begin(5);
      if (step == 0 || rng.below(4) == 0) {
        run.forward->in_order();
      } else {
        for (std::int64_t k = rng.below(5); k >= 0; --k) {
          run.forward->use(static_cast<int>(rng.below(4)), static_cast<int>(rng.below(5)));
        }
      }
      run.commit();
    }
    run.expect_flushed();
  }
}

TEST(WrittenRingTest, StepsThatEveryWeightHasAreNotKept) {
  ZoRingOptions given = ring_options(2);
  given.resident_room = 300;
  WrittenRun run(given, 4, [](RingModel& model) {
    for (int i = 0; i < 4; ++i) model.add(67, DType::kF32, 0, i == 0);
  });
  for (int step = 0; step < 30; ++step) run.run_step();
  EXPECT_LE(run.masters.steps()->steps.size(), 2U);
  run.expect_flushed();
}

TEST(WrittenRingTest, AFailureInALaneComesOutNamedOfEveryCallAndTheRingCanGo) {
  for (const LaneId lane : {ring_lanes::kH2d, ring_lanes::kCopies, ring_lanes::down(1)}) {
    for (int failing = 0; failing < 5; ++failing) {
      ZoRingOptions given = ring_options(1 + failing % 2);
      std::atomic<bool> armed = false;
      given.before_hop = [&](LaneId at, int use) {
        if (armed && at == lane && use == failing) throw Error("planted");
      };
      WrittenRun run(given, 8, [](RingModel& model) {
        for (int i = 0; i < 5; ++i) model.add(67);
      });
      run.run_step();
      run.forward->ring.flush();
      armed = true;
      const auto named =
          ThrowsMessage<Error>(AllOf(HasSubstr("planted"), HasSubstr(concat("w", failing))));
      EXPECT_THAT(
          [&] {
            for (int step = 0; step < 3; ++step) run.run_step();
            run.forward->ring.flush();
          },
          named);
      EXPECT_THAT([&] { run.forward->ring.flush(); }, ThrowsMessage<Error>(testing::_));
    }
  }
}

TEST(WrittenRingTest, ItMayGoInTheMiddleOfAStep) {
  for (int used = 1; used < 6; ++used) {
    ZoRingOptions given = ring_options(1 + used % 3);
    given.lanes.h2d = given.lanes.d2h = {.gbps = 0.05, .latency_us = 0};
    WrittenRun run(given, 9, [](RingModel& model) {
      for (int i = 0; i < 6; ++i) model.add(1031);
    });
    run.run_step();
    run.forward->begin();
    for (int i = 0; i < used - 1; ++i) run.forward->use(i);
    run.forward->acquire(used - 1);
  }
}

TEST(WrittenRingTest, CallsOutOfTheirPlaceAreRefused) {
  RingModel read_only(3);
  read_only.add(67);
  ZoRing plain(ring_options(1), read_only.uses);
  EXPECT_THAT([&] { plain.flush(); }, ThrowsMessage<InvalidArgument>(HasSubstr("only read")));
  WrittenRun run(ring_options(1), 3, [](RingModel& model) { model.add(67); });
  run.forward->begin();
  EXPECT_THAT([&] { run.forward->ring.flush(); },
              ThrowsMessage<InvalidArgument>(HasSubstr("pass 1 has not ended")));
  run.forward->use(0);
  run.commit();
  run.expect_flushed();
  ZoRingOptions given = ring_options(1);
  given.masters = &run.masters;
  EXPECT_THAT(
      [&] { ZoRing(given, read_only.uses); },
      ThrowsMessage<InvalidArgument>(HasSubstr("not the memory of any of the 1 trained weights")));
  EXPECT_THAT(
      [&] {
        HostMasters({}).hold({read_only.uses[0], read_only.uses[0]});
      },
      ThrowsMessage<InvalidArgument>(HasSubstr("each weight once")));
  read_only.uses[0].form = DType::kF16;
  EXPECT_THAT([&] { HostMasters({}).hold(read_only.uses); },
              ThrowsMessage<InvalidArgument>(HasSubstr("w0 is of f16, expected f32 or bf16")));
}

}  // namespace
}  // namespace sluiceway::test
