// WeightRing: what a forward acquires equals perturb() and materialise() of the base, bit for bit,
// in any order, at any depth; and nothing waits for what only the caller can do.
#include "runtime/engine/zo/weight_ring.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <array>
#include <atomic>
#include <chrono>
#include <cstring>
#include <functional>
#include <random>
#include <thread>

#include "kernels/base/error.h"
#include "runtime/engine/zo/zo_lanes.h"
#include "tests/support/ring_model.h"

namespace sluiceway::test {
namespace {

using testing::AllOf;
using testing::AnyOf;
using testing::HasSubstr;
using testing::ThrowsMessage;

constexpr StreamRef kHost = StreamRef::host();

WeightRingOptions options(int depth = 2) {
  WeightRingOptions all(DeviceId::host());
  all.lanes.limits.fill(Budget::kUnlimited);
  all.depth = {depth, depth};
  return all;
}

class Forward {
 public:
  Forward(const WeightRingOptions& given, RingModel& model)
      : model_(model), family_(given.family), ring(given, model.uses) {}

  void begin() {
    noise_ = StepNoise{7, ++step_, 3, 1e-2F};
    ring.begin_step(*noise_);
  }
  void begin_evaluation() {
    noise_.reset();
    ring.begin_evaluation();
  }
  void acquire(int use) {
    const auto* plus = static_cast<const std::byte*>(ring.acquire(use, Side::kPlus, kHost));
    const auto* minus = static_cast<const std::byte*>(ring.acquire(use, Side::kMinus, kHost));
    held_.push_back({use, plus, minus});
  }
  void check_and_release() {  // As late as the forward may read.
    for (const Held& h : held_) {
      expect_equal(h.use, Side::kPlus, h.plus);
      expect_equal(h.use, Side::kMinus, h.minus);
    }
    for (const Held& h : held_) ring.release(h.use, kHost);
    held_.clear();
  }
  void use(int i) {
    acquire(i);
    check_and_release();
  }
  void in_order() {
    for (int i = 0; i < size(); ++i) use(i);
  }
  void commit() {
    ZoUpdates::Record record{*noise_, {}};
    for (int group = 0; group < 2; ++group) {  // The third group is not trained.
      record.scale.push_back(static_cast<float>(1e-2 * model_.rng().normal()));
    }
    updates_.gamma = {1.0F, 0.999F};
    updates_.records.push_back(record);
    ring.commit(updates_);
  }
  void run_step() { begin(), in_order(), commit(); }
  int size() const { return static_cast<int>(model_.uses.size()); }

 private:
  struct Held {
    int use;
    const std::byte *plus, *minus;
  };

  void expect_equal(int use, Side side, const std::byte* found) {
    const std::vector<std::byte> expected = model_.expected(use, side, noise_, updates_, family_);
    EXPECT_EQ(std::memcmp(found, expected.data(), expected.size()), 0)
        << model_.uses[static_cast<std::size_t>(use)].name << " in step " << step_;
  }

  RingModel& model_;
  NoiseFamily family_;
  std::optional<StepNoise> noise_;
  std::uint64_t step_ = 0;
  ZoUpdates updates_;
  std::vector<Held> held_;

 public:
  WeightRing ring;
};

TEST(WeightRingTest, EveryBufferEqualsTheOracleAtAnyDepthWithAnyLanesAndDelays) {
  std::random_device random;
  for (int round = 0; round < 12; ++round) {
    const std::uint64_t seed = random();
    SCOPED_TRACE(seed);
    RingModel model(seed);
    model.add_random(1 + static_cast<int>(model.rng().below(12)));
    if (round % 2 == 0) model.tie(0);
    WeightRingOptions given = options(round % 3 == 0 ? 8 : 2);
    given.depth.arrivals = 1 + static_cast<int>(model.rng().below(given.depth.pairs));
    given.perturb_lanes = round % 4 < 2 ? 1 : 4;
    given.resident_room = static_cast<std::uint64_t>(model.rng().below(12000));
    given.lanes.h2d = {.gbps = 0.2, .latency_us = static_cast<double>(model.rng().below(60))};
    given.before_hop = [](LaneId lane, int use) {  // On no schedule that a step could rely on.
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
      forward.begin();
      for (int i = 0; i < forward.size(); ++i) {
        forward.acquire(i);
        if (model.rng().below(4) == 0) std::this_thread::sleep_for(std::chrono::microseconds(200));
        forward.check_and_release();
      }
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
    WeightRingOptions given = options(1 + round % 4);
    given.perturb_lanes = 1 + round % 2;
    given.resident_room = round % 3 == 0 ? 5000 : 0;
    Forward forward(given, model);
    for (int step = 0; step < 10; ++step) {  // Skipped, twice, backwards, none at all.
      forward.begin();
      for (std::int64_t k = model.rng().below(14); k > 0; --k) {
        forward.use(static_cast<int>(model.rng().below(9)));
      }
      forward.commit();
    }
    forward.run_step();
  }
}

TEST(WeightRingTest, AStreamedUseCrossesOnceAPassAndAResidentOneNever) {
  constexpr int kPasses = 5;
  RingModel model(1);
  for (int i = 0; i < 8; ++i) model.add(1000);
  model.add(64, DType::kF32, 0, true);
  WeightRingOptions given = options();
  given.resident_room = 2 * 4096;
  std::array<std::atomic<int>, 9> crossings{};
  given.before_hop = [&](LaneId lane, int use) {
    if (lane == zo_lanes::kH2d) ++crossings.at(static_cast<std::size_t>(use));
  };
  Forward forward(given, model);
  for (int pass = 0; pass < kPasses - 1; ++pass) forward.run_step();
  forward.begin_evaluation();
  forward.in_order();
  forward.ring.finish();
  int resident = 0;
  for (int use = 0; use < 9; ++use) {
    const int found = crossings.at(static_cast<std::size_t>(use));
    if (forward.ring.is_resident(use)) {
      ++resident;
      EXPECT_EQ(found, 0) << "use " << use;
    } else {  // The next pass may have begun to cross.
      EXPECT_THAT(found, AnyOf(kPasses, kPasses + 1)) << "use " << use;
    }
  }
  EXPECT_EQ(resident, 3);
  EXPECT_TRUE(forward.ring.is_resident(8));
  EXPECT_EQ(forward.ring.take_use().d2h_bytes, 0U);
}

TEST(WeightRingTest, OneWeightAloneAndOneMuchLargerThanTheOthers) {
  for (const std::int64_t large : {0, 100003}) {
    RingModel model(5);
    model.add(67);
    if (large > 0) model.add(large), model.add(66), model.add(65);
    Forward forward(options(large > 0 ? 2 : 1), model);
    for (int step = 0; step < 20; ++step) forward.run_step();
    EXPECT_EQ(forward.ring.plan().classes.size(), large > 0 ? 2U : 1U);
  }
}

// While pass t is open, and g therefore unknown, the first weights of pass t + 1 cross.
TEST(WeightRingTest, TheNextPassCrossesTheLinkBeforeThisOneIsCommitted) {
  RingModel model(6);
  for (int i = 0; i < 6; ++i) model.add(1000);
  Forward forward(options(2), model);
  std::uint64_t bytes = 0;
  for (const ZoWeight& weight : model.uses) bytes += weight.bytes();
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
  WeightRingOptions given = options(2);
  given.lanes.limits[static_cast<std::size_t>(Tier::kDevice)] = 20000;
  EXPECT_THAT([&] { WeightRing(given, model.uses); },
              ThrowsMessage<OutOfMemory>(AllOf(HasSubstr("24576 bytes"), HasSubstr("20000 bytes"),
                                               HasSubstr("the ring of 1 classes"))));
  given.lanes.limits[static_cast<std::size_t>(Tier::kDevice)] = 24576 + 4096 + 100;
  given.resident_room = WeightRingOptions::kWhatIsLeft;
  Forward forward(given, model);
  int resident = 0;
  for (int i = 0; i < 4; ++i) resident += forward.ring.is_resident(i) ? 1 : 0;
  EXPECT_EQ(resident, 1);
  forward.run_step();
}

TEST(WeightRingTest, CallsOutOfTheirPlaceAreRefusedAndChangeNothing) {
  RingModel model(3);
  for (int i = 0; i < 4; ++i) model.add(67);
  Forward forward(options(1), model);
  WeightRing& ring = forward.ring;
  EXPECT_THAT([&] { ring.acquire(0, Side::kPlus, kHost); },
              ThrowsMessage<InvalidArgument>(HasSubstr("no pass has begun")));
  EXPECT_THAT([&] { ring.finish(); }, ThrowsMessage<InvalidArgument>(HasSubstr("no pass")));
  forward.begin();
  EXPECT_THAT([&] { ring.begin_step({}); },
              ThrowsMessage<InvalidArgument>(HasSubstr("pass 1 has not ended, expected commit()")));
  EXPECT_THAT([&] { ring.acquire(4, Side::kPlus, kHost); },
              ThrowsMessage<InvalidArgument>(HasSubstr("use is 4, expected 0 to 3")));
  EXPECT_THAT([&] { ring.release(0, kHost); },
              ThrowsMessage<InvalidArgument>(HasSubstr("w0 is not acquired")));
  forward.acquire(0);
  EXPECT_THAT([&] { ring.acquire(1, Side::kPlus, kHost); },
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
  EXPECT_THAT([&] { WeightRing(options(), model.uses); },
              ThrowsMessage<InvalidArgument>(HasSubstr("begins 396 bytes before another ends")));
  model.uses[1].host = model.uses[0].host;
  EXPECT_THAT([&] { WeightRing(options(), model.uses); },
              ThrowsMessage<InvalidArgument>(HasSubstr("share their storage")));
}

// In either lane, whatever waits for arrivals, pairs or the next pass at that time.
TEST(WeightRingTest, AFailureInALaneComesOutNamedOfEveryCallAndTheRingCanGo) {
  for (const LaneId lane : {zo_lanes::kH2d, zo_lanes::kPerturb}) {
    for (int failing = 0; failing < 5; ++failing) {
      RingModel model(8);
      for (int i = 0; i < 5; ++i) model.add(67);
      WeightRingOptions given = options(1 + failing % 2);
      given.before_hop = [&](LaneId at, int use) {
        if (at == lane && use == failing) throw Error("planted");
      };
      const auto named =
          ThrowsMessage<Error>(AllOf(HasSubstr("planted"), HasSubstr(concat("w", failing))));
      std::unique_ptr<WeightRing> ring;
      const auto pass = [&] {
        ring = std::make_unique<WeightRing>(given, model.uses);
        ring->begin_step({1, 1, 1, 1e-3F});
        for (int i = 0; i < 5; ++i) {
          ring->acquire(i, Side::kPlus, kHost);
          ring->release(i, kHost);
        }
        ring->finish();
      };
      EXPECT_THAT(pass, named);
      if (ring == nullptr) continue;
      EXPECT_THAT([&] { ring->acquire(failing, Side::kMinus, kHost); }, named);
    }
  }
}

TEST(WeightRingTest, ItMayGoInTheMiddleOfAStep) {
  for (int used = 0; used < 6; ++used) {
    RingModel model(9);
    for (int i = 0; i < 6; ++i) model.add(1031);
    WeightRingOptions given = options(1 + used % 3);
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
