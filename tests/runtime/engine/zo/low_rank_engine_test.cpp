// ZoEngine with low-rank noise, on the host and on CUDA device 0: forwards read the weights of the
// log, as the oracle computes them, over periods, lines of the log, and processes.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <filesystem>
#include <thread>
#include <vector>

#include "kernels/base/error.h"
#include "runtime/engine/stream/ring_hops.h"
#include "tests/support/backend.h"
#include "tests/support/low_rank_engine_run.h"
#include "tests/support/stream_work.h"

namespace sluiceway::test {
namespace {

using testing::AllOf;
using testing::HasSubstr;
using testing::ThrowsMessage;

class LowRankEngineTest : public testing::TestWithParam<DeviceId> {};

TEST_P(LowRankEngineTest, PassesAreWhatTheLogSaysOverPeriodsAndInTheNextProcess) {
  struct Case {
    int depth, lanes;
    std::uint32_t directions, rank, period;
    std::uint64_t resident_room;
  };
  for (const Case& c :
       {Case{2, 1, 1, 3, 3, 0}, Case{8, 4, 3, 1, 2, 500}, Case{1, 4, 2, 17, 1, 0}}) {
    SCOPED_TRACE(testing::Message() << "depth " << c.depth << ", rank " << c.rank);
    Followed all(GetParam(), log_shape(c.rank, c.period, c.directions));
    ZoEngineOptions options = all.options();
    options.ring.depth = {c.depth, c.depth, c.depth};
    options.ring.copy_lanes = c.lanes;
    options.ring.resident_room = c.resident_room;
    for (int opened = 0; opened < 2; ++opened) {
      ZoEngine engine(options);
      engine.stream(all.run.uses);
      for (int i = 0; i < 3; ++i) all.take_step(engine);
      all.expect_evaluation(engine);
    }
  }
}

TEST_P(LowRankEngineTest, WhatIsMadeBesideTheRingIsTheSame) {
  Followed all(GetParam(), log_shape(2, 2, 2));
  for (int opened = 0; opened < 2; ++opened) {
    ZoEngine engine(all.options());
    for (std::size_t use = 0; use < 4; ++use) all.expect_outside(engine, use, nullptr);
    for (int i = 0; i < 3; ++i) {
      engine.begin_step();
      for (std::size_t use = 0; use < 4; ++use) {
        const StepNoise noise = engine.noise(1);
        all.expect_outside(engine, use, &noise);
        all.expect_outside(engine, use, nullptr);
      }
      all.commit(engine);
    }
  }
}

TEST_P(LowRankEngineTest, LinesOfTheLogHaveFactorsOfTheirOwn) {
  Followed all(GetParam(), log_shape(2, 3, 1));
  ZoEngine engine(all.options());
  engine.stream(all.run.uses);
  for (int i = 0; i < 3; ++i) all.take_step(engine);
  const LowRankRun::State at_the_end_of_a_period = all.run.state;
  for (int i = 0; i < 2; ++i) all.take_step(engine);
  const LowRankRun::State later = all.run.state;
  const std::uint64_t entries = engine.log().history().entries();
  engine.rollback(3);
  all.run.state = at_the_end_of_a_period;
  all.expect_evaluation(engine);
  all.take_step(engine);
  engine.branch(3, all.other.str());
  engine.restore(entries);
  all.run.state = later;
  all.expect_evaluation(engine);
  all.take_step(engine);
  ZoEngineOptions of_branch = all.options();
  of_branch.log_path = all.other.str();
  ZoEngine branch(of_branch);
  branch.stream(all.run.uses);
  all.run.state = at_the_end_of_a_period;
  for (int i = 0; i < 2; ++i) all.take_step(branch);
}

TEST_P(LowRankEngineTest, APeriodThatDoesNotFitIsRefusedBeforeItsStep) {
  Followed all(GetParam(), log_shape(4, 2, 1), true);
  ZoEngineOptions options = all.options();
  // Room for two periods of 4 (5 + 7) floats, the sum and base of a vector, and U, but no third
  // period.
  std::uint64_t& limit = options.ring.lanes.limits[static_cast<std::size_t>(Tier::kDevice)];
  limit = 3 * 4 * 12 * sizeof(float) + 2 * 7 * sizeof(float) + 4 * 5 * sizeof(float);
  {
    ZoEngine engine(options);
    for (int i = 0; i < 4; ++i) engine.begin_step(), all.commit(engine);
    EXPECT_THAT(
        [&] { engine.begin_step(); },
        ThrowsMessage<OutOfMemory>(AllOf(HasSubstr("room for 3 periods of low-rank noise of w1"),
                                         HasSubstr("needs 576 bytes"), HasSubstr("of 712 bytes"))));
    EXPECT_EQ(engine.log().next_step(), 4U);
    for (std::size_t use = 0; use < 2; ++use) all.expect_outside(engine, use, nullptr);
  }
  limit = Budget::kUnlimited;
  ZoEngine engine(options);
  engine.stream(all.run.uses);
  all.take_step(engine);
}

// With all remaining room for them, some matrices stay on the device at first, and fewer later.
TEST_P(LowRankEngineTest, ResidentWeightsGiveWayToAPeriod) {
  Followed all(GetParam(), log_shape(4, 1, 1), true);
  for (int i = 0; i < 3; ++i) all.run.add(19, 19 * 23, DType::kF32, 0);
  ZoEngineOptions options = all.options();
  options.ring.resident_room = WeightRingOptions::kWhatIsLeft;
  options.ring.lanes.limits[static_cast<std::size_t>(Tier::kDevice)] = 28'000;
  ZoEngine engine(options);
  engine.stream(all.run.uses);
  engine.ring().trace().enable(true);
  std::vector<int> residents;  // Number in each step.
  const auto take_steps = [&] {
    for (;;) {
      int& count = residents.emplace_back(0);
      for (int use = 0; use < 5; ++use) count += engine.ring().is_resident(use) ? 1 : 0;
      ASSERT_LT(residents.size(), 100U);
      all.take_step(engine);
    }
  };
  EXPECT_THAT(take_steps, ThrowsMessage<OutOfMemory>(HasSubstr("periods of low-rank noise of w")));
  EXPECT_GT(residents.front(), residents.back());
  EXPECT_TRUE(std::is_sorted(residents.rbegin(), residents.rend()));
  EXPECT_TRUE(engine.ring().trace().enabled());
  for (int again = 0; again < 2; ++again) {  // A rejected call has changed nothing.
    all.expect_evaluation(engine);
    EXPECT_THROW(engine.begin_step(), OutOfMemory);
  }
}

// Two streams take turns; the first one used reads late.
TEST_P(LowRankEngineTest, FactorsAreReadOnEveryStreamBeforeTheyAreWritten) {
  Followed all(GetParam(), log_shape(3, 4, 1), true);
  ZoEngine engine(all.options());
  Stream second = Stream::owned(GetParam(), {"second"});
  StreamRef other = StreamRef::host();
  second.enqueue([&](StreamRef ref) { other = ref; });
  second.synchronize();
  engine.begin_step(), all.commit(engine);
  LowRankUpdates& low_rank = engine.low_rank(all.compute);
  const StreamedWeight& vector = all.run.uses[1];
  const std::vector<std::byte> expected = all.run.expected(1, Side::kPlus, {});
  Budget budget = Budget::unlimited();
  const auto buffer = [&] {
    return Buffer(budget, Tier::kDevice, GetParam(), vector.bytes(), "a copy");
  };
  const Buffer base = buffer(), theta = buffer();
  Gate gate(GetParam());
  gate.hold(all.stream);
  low_rank.make_alone(stable_hash(vector.name), {{base.data(), base.size()}, theta.data(), nullptr},
                      engine.updates(), nullptr, all.compute);
  engine.low_rank(other);
  engine.begin_step(), all.commit(engine);
  std::atomic<bool> begun = false;
  std::thread next([&] {
    engine.begin_evaluation();
    begun = true;
  });
  sleep_ms(10);
  EXPECT_EQ(begun, GetParam().is_host());  // Its work is read at once.
  gate.open();
  next.join();
  EXPECT_EQ(all.bytes_at(theta.data(), theta.size()), expected);
}

INSTANTIATE_TEST_SUITE_P(Devices, LowRankEngineTest, testing::ValuesIn(built_devices()),
                         device_name);

// ---- On the host alone --------------------------------------------------------------------------

TEST(LowRankStepsTest, AreMoreThanReplayTakes) {
  Followed all(DeviceId::host(), log_shape(2, 100, 1), true);
  {
    ZoEngine engine(all.options());
    engine.stream(all.run.uses);
    for (int i = 0; i < 1030; ++i) engine.begin_step(), all.commit(engine);
    all.take_step(engine);
    all.expect_evaluation(engine);
  }
  ZoEngine engine(all.options());
  engine.stream(all.run.uses);
  all.take_step(engine);
}

// Perturbs use 1 late, in a lane of its own, while the gate is shut.
struct LateUse {
  std::atomic<bool> open = true;
  std::atomic<int> waiting = 0;

  void hold_in(ZoEngineOptions& options) {
    options.ring.copy_lanes = 2;
    options.ring.before_hop = [this](LaneId lane, int use) {
      if (lane != ring_lanes::kCopies || use != 1 || open) return;
      ++waiting;
      open.wait(false);
    };
  }
  // Begins a step in which nobody requests it.
  void begin_step(ZoEngine& engine, Followed& all) {
    open = false, waiting = 0;
    engine.begin_step();
    all.expect_use(engine, 0, 0, true);
    while (waiting == 0) std::this_thread::yield();
  }
  void come() {
    open = true;
    open.notify_all();
  }
};

// L1: work that a lane still does for a pass uses the factors of that pass.
TEST(LowRankStepsTest, ChangeNothingBeforeTheLastTurnOfAPassIsThrough) {
  Followed all(DeviceId::host(), log_shape(2, 2, 1));
  ZoEngineOptions options = all.options();
  LateUse late;
  late.hold_in(options);
  ZoEngine engine(options);
  engine.stream(all.run.uses);
  all.take_step(engine);
  for (int i = 0; i < 3; ++i) {
    std::atomic<bool> begun = false;
    late.begin_step(engine, all);
    std::thread next([&] {
      all.commit(engine);
      engine.begin_evaluation();
      begun = true;
    });
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
    EXPECT_FALSE(begun);
    late.come();
    next.join();
    all.expect_pass(engine, false);
    engine.finish();
  }
}

TEST(LowRankStepsTest, AreMadeThoughTheirCommitWasInterrupted) {
  Followed all(DeviceId::host(), log_shape(2, 2, 1));
  ZoEngineOptions options = all.options();
  LateUse late;
  late.hold_in(options);
  std::atomic<bool> interrupt = false;
  options.ring.lanes.check_interrupt = [&] {
    if (interrupt.exchange(false)) throw Timeout("interrupt");
  };
  ZoEngine engine(options);
  engine.stream(all.run.uses);
  for (int i = 0; i < 2; ++i) {
    late.begin_step(engine, all);
    interrupt = true;
    EXPECT_THROW(all.commit(engine), Timeout);
    all.run.take_step(all.g, all.rates);
    EXPECT_EQ(engine.log().next_step(), all.run.state.step);
    late.come();
    all.expect_outside(engine, 0, nullptr);
    all.take_step(engine);
  }
}

TEST(LowRankStepsTest, AreDrawnByLanesThatShareNothing) {
  Followed all(DeviceId::host(), log_shape(4, 2, 1), true);
  for (int i = 0; i < 4; ++i) all.run.add(521, 521, DType::kF32, 0);
  ZoEngineOptions options = all.options();
  options.ring.copy_lanes = 4;
  options.ring.depth = {8, 8, 8};
  ZoEngine engine(options);
  engine.stream(all.run.uses);
  for (int i = 0; i < 2; ++i) all.take_step(engine);
}

TEST(LowRankStepsTest, AreOfWeightsThatAreTrained) {
  Followed all(DeviceId::host(), log_shape(2, 2, 1), true);
  ZoEngineOptions options = all.options();
  options.trained.pop_back();
  {
    ZoEngine engine(options);
    EXPECT_THAT(
        [&] {
          engine.stream(all.run.uses);
          all.expect_evaluation(engine);
        },
        ThrowsMessage<InvalidArgument>(AllOf(HasSubstr("not among the 1"), HasSubstr("w2"))));
  }
  options = all.options();
  const auto refused = [&](const char* words) {
    EXPECT_THAT([&] { ZoEngine engine(options); },
                ThrowsMessage<InvalidArgument>(HasSubstr(words)));
    options = all.options();
  };
  options.trained[0].group = 2;
  refused("w1 is of group 2, expected a number below the log's 2");
  options.trained[0].rows = 4;
  refused("w1 has 35 elements in 4 rows");
  options.trained[1].host = nullptr;
  refused("w2 is a vector whose base is not in host memory");
  options.trained[1] = options.trained[0];
  refused("w1 occurs twice");
  options.shape.noise.period_steps = 0;
  refused("a period of 0 steps");
}

}  // namespace
}  // namespace sluiceway::test
