// MasterSnapshot: each weight reads as of the snapshot's step, whenever it is read and whatever
// steps are made meanwhile; and writers wait only for the reader.
#include "runtime/engine/zo/master_snapshot.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <chrono>
#include <cstring>
#include <future>
#include <latch>
#include <memory>
#include <numeric>
#include <optional>
#include <random>
#include <thread>
#include <vector>

#include "kernels/base/error.h"
#include "runtime/engine/stream/ring_hops.h"
#include "runtime/engine/zo/zo_engine.h"
#include "tests/support/written_run.h"

namespace sluiceway::test {
namespace {

using testing::AnyOf;
using testing::HasSubstr;
using testing::ThrowsMessage;
using Bytes = std::vector<std::byte>;

const StreamRef kHost = StreamRef::host();

std::vector<Bytes> copies_of(const std::vector<StreamedWeight>& weights) {
  std::vector<Bytes> all;
  for (const StreamedWeight& weight : weights) {
    const auto* const bytes = static_cast<const std::byte*>(weight.host);
    all.emplace_back(bytes, bytes + weight.bytes());
  }
  return all;
}

std::vector<std::size_t> shuffled(std::size_t count, Rng& rng) {
  std::vector<std::size_t> order(count);
  std::iota(order.begin(), order.end(), 0);
  for (std::size_t i = count; i > 1; --i) {
    std::swap(order[i - 1], order[static_cast<std::size_t>(rng.below(static_cast<int>(i)))]);
  }
  return order;
}

// Reads weights in an order of its own, one for each call of permit().
class Reader {
 public:
  Reader(std::shared_ptr<MasterSnapshot> snapshot, const HostMasters& masters,
         std::vector<std::size_t> order)
      : snapshot_(std::move(snapshot)), found(masters.size()) {
    thread_ = std::thread([this, &masters, order = std::move(order)] {
      for (std::size_t read = 0; read < order.size(); ++read) {
        for (std::size_t may = permits_; may <= read; may = permits_) permits_.wait(may);
        const std::size_t i = order[read];
        snapshot_->wait(i);
        const std::byte* const bytes = masters.data(i);
        found[i].assign(bytes, bytes + masters.weight(i).bytes());
        snapshot_->let_go(i);
      }
    });
  }
  ~Reader() {
    permit(found.size());
    thread_.join();
  }

  void permit(std::size_t more) {
    permits_ += more;
    permits_.notify_all();
  }
  void join() {
    permit(found.size());
    thread_.join();
    thread_ = std::thread([] {});
  }

 private:
  std::shared_ptr<MasterSnapshot> snapshot_;
  std::atomic<std::size_t> permits_ = 0;
  std::thread thread_;

 public:
  std::vector<Bytes> found;  // By weight; after join().
};

// A WrittenRun whose snapshots are made like those of ZoEngine.
struct SnapshotRun : WrittenRun {
  using WrittenRun::WrittenRun;

  std::vector<StreamedWeight> held() const {
    std::vector<StreamedWeight> all;
    for (const std::size_t i : first) all.push_back(oracle.uses[i]);
    return all;
  }
  std::shared_ptr<MasterSnapshot> begin() {
    expected = copies_of(held());
    std::shared_ptr<MasterSnapshot> snapshot = masters.begin_snapshot();
    forward->ring.copy_residents_back();
    return snapshot;
  }
  void step(int directions = 1) {
    forward->begin(directions);
    forward->in_order();
    forward->ring.catch_up();
    commit();
  }

  std::vector<Bytes> expected;  // By held weight.
};

TEST(MasterSnapshotTest, EveryWeightIsReadOfItsStepAtAnyDepthWithAnyDelaysAndAnyReader) {
  std::random_device random;
  for (int round = 0; round < 16; ++round) {
    const std::uint64_t seed = random();
    SCOPED_TRACE(seed);
    Rng rng(seed);
    ZoRingOptions given = ring_options(round % 2 == 0 ? 8 : 2);
    given.depth.arrivals = 1 + static_cast<int>(rng.below(given.depth.pairs));
    given.copy_lanes = round % 4 < 2 ? 1 : 3;
    given.resident_room = static_cast<std::uint64_t>(rng.below(12000));
    given.lanes.d2h = {.gbps = 0.1, .latency_us = static_cast<double>(rng.below(90))};
    given.before_hop = [](LaneId lane, int use) {  // At no time that a step could rely on.
      std::this_thread::sleep_for(std::chrono::microseconds((lane * 13 + use * 31) % 7 * 40));
    };
    SnapshotRun run(given, seed, [&](RingModel& model) {
      model.add_random(1 + static_cast<int>(model.rng().below(9)));
      if (round % 2 == 0) model.tie(0);
    });
    for (int snapshot = 0; snapshot < 3; ++snapshot) {
      for (std::int64_t k = rng.below(3); k > 0; --k) run.step();
      if (rng.below(3) == 0) run.run_evaluation();  // Updates every weight, so all has landed.
      const std::shared_ptr<MasterSnapshot> taken = run.begin();
      const std::size_t count = run.masters.size();
      Reader reader(taken, run.masters, shuffled(count, rng));
      std::size_t permitted = static_cast<std::size_t>(rng.below(static_cast<int>(count) + 1));
      reader.permit(permitted);
      if (rng.below(3) == 0) run.run_evaluation();
      run.step(1 + static_cast<int>(rng.below(2)));
      reader.permit(count - permitted);  // Otherwise the pass after may wait for it.
      for (std::int64_t k = rng.below(4); k > 0; --k) run.step();
      reader.join();
      EXPECT_EQ(reader.found, run.expected);
      EXPECT_TRUE(taken->is_read());
    }
    run.expect_flushed();
  }
}

// S2: also for weights that the pass has skipped.
TEST(MasterSnapshotTest, APassThatSkipsWeightsLeavesNoneBehind) {
  std::random_device random;
  for (int round = 0; round < 12; ++round) {
    const std::uint64_t seed = random();
    SCOPED_TRACE(seed);
    Rng rng(seed);
    ZoRingOptions given = ring_options(1 + round % 4);
    given.lanes.h2d = {.gbps = 0.05, .latency_us = 200};  // Later weights still cross.
    SnapshotRun run(given, seed, [](RingModel& model) {
      model.add_random(7);
      model.tie(0);
    });
    for (int k = 0; k < 4; ++k) {
      run.step();
      Reader reader(run.begin(), run.masters, shuffled(run.masters.size(), rng));
      reader.permit(run.masters.size());
      for (int skipping = 0; skipping < 3; ++skipping) {
        run.forward->begin();
        for (std::int64_t n = rng.below(8); n > 0; --n) {
          run.forward->use(static_cast<int>(rng.below(8)));
        }
        run.forward->ring.catch_up();
        run.commit();
      }
      reader.join();
      EXPECT_EQ(reader.found, run.expected);
    }
    run.expect_flushed();
  }
}

// S1, R8: nobody reads for two passes, and the slots suffice for both.
TEST(MasterSnapshotTest, AForwardWithSlotsEnoughWaitsForNoReader) {
  SnapshotRun run(ring_options(8), 5, [](RingModel& model) {
    for (int i = 0; i < 4; ++i) model.add(67 + i, i % 2 == 0 ? DType::kF32 : DType::kBF16);
  });
  run.step();
  const std::shared_ptr<MasterSnapshot> taken = run.begin();
  run.step();
  run.forward->begin();
  run.forward->in_order();  // Each weight of the next step.
  for (std::size_t i = 0; i < run.masters.size(); ++i) {
    taken->wait(i);
    EXPECT_EQ(std::memcmp(run.masters.data(i), run.expected[i].data(), run.expected[i].size()), 0)
        << "w" << i;
  }
  taken->let_go_of_all();
  run.commit();
  run.expect_flushed();
}

TEST(MasterSnapshotTest, WhatIsOnItsWayBackWhenItBeginsHasNotLanded) {
  std::latch may_go_back(1);
  ZoRingOptions given = ring_options(4);
  given.before_hop = [&](LaneId lane, int use) {
    if (lane == ring_lanes::down(1) && use == 1) may_go_back.wait();
  };
  SnapshotRun run(given, 6, [](RingModel& model) {
    for (int i = 0; i < 3; ++i) model.add(67);
  });
  run.step();
  run.run_evaluation();
  const std::shared_ptr<MasterSnapshot> taken = run.begin();
  auto lands = std::async(std::launch::async, [&] { taken->wait(1); });
  EXPECT_EQ(lands.wait_for(std::chrono::milliseconds(20)), std::future_status::timeout);
  may_go_back.count_down();
  lands.get();
  EXPECT_EQ(std::memcmp(run.masters.data(1), run.expected[1].data(), run.expected[1].size()), 0);
  taken->let_go_of_all();
}

// S1, for weights that the host writes.
TEST(MasterSnapshotTest, TheHostWaitsBeforeItCatchesAWeightUp) {
  SnapshotRun run(ring_options(2), 7, [](RingModel& model) { model.add(67); });
  run.forward.reset();
  const std::shared_ptr<MasterSnapshot> taken = run.masters.begin_snapshot();
  const Bytes before = copies_of({run.model.uses[0]}).front();
  ZoUpdates step;
  step.records.push_back({{7, 1, 0, 1e-2F}, {0.5F}});
  step.gamma = {1.0F};
  run.masters.append(step);
  auto catches_up = std::async(std::launch::async, [&] { run.masters.catch_up(0); });
  EXPECT_EQ(catches_up.wait_for(std::chrono::milliseconds(20)), std::future_status::timeout);
  taken->wait(0);
  EXPECT_EQ(copies_of({run.model.uses[0]}).front(), before);
  taken->let_go(0);
  catches_up.get();
  EXPECT_NE(copies_of({run.model.uses[0]}).front(), before);
}

TEST(MasterSnapshotTest, WhatWaitsIsEndedByWhoeverFailsOrClosesIt) {
  MasterSnapshot failing(4, 2);
  failing.land(0);
  failing.wait(0);
  EXPECT_FALSE(failing.wait_until_read(std::chrono::milliseconds(0)));
  auto waits = std::async(std::launch::async, [&] { failing.wait(1); });
  failing.fail(std::make_exception_ptr(Error("planted")));
  EXPECT_THAT([&] { waits.get(); }, ThrowsMessage<Error>(HasSubstr("planted")));
  EXPECT_THAT([&] { failing.let_go(0); }, ThrowsMessage<Error>(HasSubstr("planted")));
  EXPECT_TRUE(failing.read(0).happened());
  EXPECT_TRUE(failing.is_read());

  MasterSnapshot closing(4, 2);
  closing.land(0);
  closing.let_go(0);
  EXPECT_TRUE(closing.read(0).happened());
  EXPECT_FALSE(closing.read(1).happened());
  EXPECT_TRUE(closing.wait_until_read(0, std::chrono::milliseconds(0)));
  closing.let_go_of_all();
  EXPECT_THAT([&] { closing.wait(1); },
              ThrowsMessage<InvalidArgument>(HasSubstr("weight 1 was let go already")));
  EXPECT_THAT([&] { closing.wait(2); },
              ThrowsMessage<InvalidArgument>(HasSubstr("weight 2, expected below 2")));
  closing.fail(std::make_exception_ptr(Error("planted")));  // Its reader has ended.
  EXPECT_THAT([&] { closing.let_go(1); },                   // The data read may be of two steps.
              ThrowsMessage<InvalidArgument>(HasSubstr("weight 1 was let go already")));
}

// ---- Of an engine -------------------------------------------------------------------------------

// Some streamed weights, a resident one, and one that no pass streams.
struct Trained {
  explicit Trained(const std::optional<DType>& wire, bool streams = true) {
    for (const int elements : {67, 4099, 1031, 64}) model.add(elements);
    model.uses.back().keep = true;
    ZoEngineOptions options(DeviceId::host());
    options.mode = ZoMode::kWriteBack;
    options.ring.lanes.limits.fill(Budget::kUnlimited);
    options.ring.before_hop = [this](LaneId lane, int) {
      if (!fails || lane != ring_lanes::down(1)) return;
      may_fail.wait();
      throw Error("planted");
    };
    options.shape.run_seed = 77;
    options.threads = 2;
    options.wire = wire;
    engine.emplace(options);
    engine->hold(model.uses);
    if (streams) engine->stream({model.uses.begin() + 1, model.uses.end()});
  }

  void take_step(int uses = 3) {
    engine->begin_step();
    for (int use = 0; engine->streams() && use < uses; ++use) {
      engine->acquire(use, 0, Side::kPlus, kHost);
      engine->release(use, 0, kHost);
    }
    engine->commit(std::array{0.5F}, std::array{StepRate{0.25, 0.5}});
  }
  void take_steps(int count) {
    for (int i = 0; i < count; ++i) take_step();
  }
  std::vector<Bytes> flushed() {
    engine->flush();
    return copies_of(model.uses);
  }
  std::future<std::vector<Bytes>> read(std::shared_ptr<MasterSnapshot> snapshot) {
    return std::async(std::launch::async, [this, snapshot] {
      std::vector<Bytes> found;
      for (std::size_t i = 0; i < model.uses.size(); ++i) {
        snapshot->wait(i);
        found.push_back(copies_of({model.uses[i]}).front());
        snapshot->let_go(i);
      }
      return found;
    });
  }

  RingModel model{5};
  std::atomic<bool> fails = false;
  std::latch may_fail{1};
  std::optional<ZoEngine> engine;
};

class EngineSnapshotTest : public testing::TestWithParam<std::optional<DType>> {};

TEST_P(EngineSnapshotTest, HasWhatAFlushHasWhateverFollows) {
  for (const bool streams : {true, false}) {
    for (const int follow : {0, 1, 3}) {
      Trained flushing(GetParam(), streams), trained(GetParam(), streams);
      for (Trained* each : {&flushing, &trained}) each->take_steps(3);
      const std::shared_ptr<MasterSnapshot> taken = trained.engine->begin_snapshot();
      EXPECT_EQ(taken->step(), 3U);
      auto reading = trained.read(taken);
      trained.take_steps(follow);
      if (follow == 3) trained.engine->stream({trained.model.uses[2]});  // Waits.
      trained.engine->finish_snapshot();
      EXPECT_TRUE(taken->is_read());
      EXPECT_EQ(reading.get(), flushing.flushed());
      flushing.take_steps(follow);
      EXPECT_EQ(trained.flushed(), flushing.flushed());
    }
  }
}

TEST_P(EngineSnapshotTest, AnEvaluationAndAStepThatIsNotMadeBringItInToo) {
  Trained flushing(GetParam()), trained(GetParam());
  for (Trained* each : {&flushing, &trained}) each->take_steps(2);
  const std::shared_ptr<MasterSnapshot> taken = trained.engine->begin_snapshot();
  auto reading = trained.read(taken);
  trained.engine->begin_step();
  trained.engine->finish();
  trained.engine->begin_evaluation();
  trained.engine->finish();
  trained.take_step();
  EXPECT_EQ(reading.get(), flushing.flushed());
  EXPECT_NO_THROW(trained.engine->begin_snapshot()->let_go_of_all());
}

TEST_P(EngineSnapshotTest, AStepBehindAPassThatSkipsWeightsIsMadeWhenTheyAreThere) {
  Trained flushing(GetParam()), trained(GetParam());
  for (Trained* each : {&flushing, &trained}) each->take_steps(2);
  const std::shared_ptr<MasterSnapshot> taken = trained.engine->begin_snapshot();
  auto reading = trained.read(taken);  // Images of the next step are made meanwhile.
  trained.take_step(0);
  EXPECT_EQ(reading.get(), flushing.flushed());
  for (Trained* each : {&flushing, &trained}) each->take_steps(each == &flushing ? 2 : 1);
  EXPECT_EQ(trained.flushed(), flushing.flushed());
}

TEST_P(EngineSnapshotTest, WhoeverReadsIsToldThatWeightsWereReplaced) {
  Trained trained(GetParam());
  trained.take_step();
  std::shared_ptr<MasterSnapshot> taken = trained.engine->begin_snapshot();
  EXPECT_THAT(
      [&] { trained.engine->begin_snapshot(); },
      ThrowsMessage<InvalidArgument>(HasSubstr("the snapshot of step 1 is still being read")));
  trained.engine->begin_step();
  EXPECT_THAT([&] { trained.engine->finish_snapshot(); },
              ThrowsMessage<InvalidArgument>(HasSubstr("a pass has begun")));
  trained.engine->restart(0);
  EXPECT_THAT([&] { taken->let_go(0); },
              ThrowsMessage<Error>(HasSubstr("set the weights to step 0")));
  taken = trained.engine->begin_snapshot();
  EXPECT_EQ(trained.read(taken).get(), copies_of(trained.model.uses));  // Everything has landed.
  trained.take_step();
  taken = trained.engine->begin_snapshot();
  trained.take_step();  // Later work waits in the lanes.
  trained.engine.reset();
  EXPECT_THAT([&] { taken->let_go(1); },
              ThrowsMessage<Error>(HasSubstr("the engine was destroyed")));
}

INSTANTIATE_TEST_SUITE_P(Wires, EngineSnapshotTest,
                         testing::Values(std::optional<DType>(), DType::kBF16, DType::kF16),
                         [](const auto& param) {
                           return param.param ? std::string(to_string(*param.param)) : "as_it_is";
                         });

const auto kIsTold = ThrowsMessage<Error>(AnyOf(HasSubstr("planted"), HasSubstr("not returned")));

// S3
TEST(FailedSnapshotTest, WhatALaneHasDroppedIsNeverRead) {
  for (const bool flushes : {false, true}) {
    Trained trained(std::nullopt);
    trained.take_steps(2);
    trained.engine->flush();
    trained.take_step();
    trained.fails = true;
    const std::shared_ptr<MasterSnapshot> taken = trained.engine->begin_snapshot();
    auto reading = trained.read(taken);
    trained.may_fail.count_down();
    EXPECT_THAT(
        [&] {
          if (!flushes) trained.take_steps(3);
          trained.engine->finish_snapshot();
        },
        kIsTold);
    try {  // Everything that waits for it has ended, in whatever order.
      trained.engine->finish_snapshot();
    } catch (const Error&) {
    }
    EXPECT_THAT([&] { reading.get(); }, kIsTold);
    if (!flushes) continue;
    EXPECT_THAT([&] { trained.engine->begin_snapshot(); },
                ThrowsMessage<Error>(HasSubstr("planted")));
  }
}

}  // namespace
}  // namespace sluiceway::test
