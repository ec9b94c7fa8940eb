// ZoEngine: the ring gives the weights that the log defines, through commits, rollbacks, failures,
// new bases and new processes.
#include "runtime/engine/zo/zo_engine.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <filesystem>
#include <memory>
#include <optional>

#include "kernels/base/error.h"
#include "tests/support/arena_run.h"
#include "tests/support/io_back_ends.h"
#include "tests/support/ring_model.h"

namespace sluiceway::test {
namespace {

using testing::HasSubstr;
using testing::ThrowsMessage;

constexpr std::uint32_t kGroups = 3, kDirections = 2;
constexpr float kEps = 1e-2F;
const StreamRef kHost = StreamRef::host();

class ZoEngineTest : public testing::Test {
 protected:
  ZoEngineTest() {
    model.add_random(9);
    model.tie(0);
    for (std::uint32_t group = 0; group < kGroups; ++group) gammas.push_back(1);
  }

  ZoEngineOptions options() const {
    ZoEngineOptions all(DeviceId::host());
    all.ring.lanes.limits.fill(Budget::kUnlimited);
    all.log_path = path.str();
    all.shape.run_seed = 77;
    all.shape.noise.family = static_cast<std::uint32_t>(NoiseFamily::kGaussian);
    all.shape.groups = kGroups;
    all.shape.directions = kDirections;
    all.eps = kEps;
    return all;
  }

  // Returns the noise of the next step.
  StepNoise noise(std::uint32_t direction) const { return {77, step, direction, kEps}; }

  void expect_bits(ZoEngine& engine, int use, int direction, Side side,
                   const std::optional<StepNoise>& with) {
    const void* const found = engine.acquire(use, direction, side, kHost);
    const auto expected = model.expected(use, side, with, updates, NoiseFamily::kGaussian);
    EXPECT_EQ(std::memcmp(found, expected.data(), expected.size()), 0)
        << "use " << use << ", direction " << direction;
  }

  // Checks that every read of a pass agrees with `updates`.
  void expect_pass(ZoEngine& engine, bool is_step) {
    for (const std::vector<int>& module : model.modules()) {
      for (std::uint32_t d = 0; d < (is_step ? kDirections : 1); ++d) {
        std::optional<StepNoise> with;
        if (is_step) with = noise(d);
        const int direction = static_cast<int>(d);
        for (const int use : module) {
          for (const Side side : {Side::kPlus, Side::kMinus}) {
            expect_bits(engine, use, direction, side, with);
          }
        }
        for (const int use : module) engine.release(use, direction, kHost);
      }
    }
  }

  void take_step(ZoEngine& engine) {
    engine.begin_step();
    expect_pass(engine, true);
    const std::vector<float> g = {static_cast<float>(model.rng().normal()),
                                  static_cast<float>(model.rng().normal())};
    std::vector<StepRate> rates;
    for (std::uint32_t group = 0; group < kGroups; ++group) {
      rates.push_back({1e-2 * (group + 1), 0.1 * group});
    }
    engine.commit(g, rates, false);
    made.resize(step);
    made.push_back({g, rates});
    note(step++);
  }

  // Adds a finished step to the updates.
  void note(std::uint64_t at) {
    const auto& [g, rates] = made.at(at);
    for (std::uint32_t d = 0; d < kDirections; ++d) {
      ZoUpdates::Record& record = updates.records.emplace_back();
      record.noise = {77, at, d, kEps};
      for (std::uint32_t group = 0; group < kGroups; ++group) {
        const StepRate& rate = rates[group];
        if (d == 0) gammas[group] *= 1 - rate.lr * rate.weight_decay;
        const double scale = -(rate.lr * double{g[d]}) / (kDirections * gammas[group]);
        record.scale.push_back(static_cast<float>(scale));
      }
    }
    updates.gamma.assign(gammas.begin(), gammas.end());
  }

  RingModel model{20261123};
  ScratchPath path, other;
  ZoUpdates updates;
  std::vector<double> gammas;
  struct Made {
    std::vector<float> g;
    std::vector<StepRate> rates;
  };
  std::vector<Made> made;  // By step.
  std::uint64_t step = 0;
};

TEST_F(ZoEngineTest, PassesAreWhatTheLogSaysInThisProcessAndTheNext) {
  for (int opened = 0; opened < 3; ++opened) {
    ZoEngine engine(options());
    EXPECT_EQ(engine.log().next_step(), step);
    engine.stream(model.uses);
    for (int i = 0; i < 4; ++i) take_step(engine);
    engine.begin_evaluation();
    expect_pass(engine, false);
    engine.finish();
    EXPECT_EQ(engine.gammas(), gammas);
  }
}

// Rounds of this process are the directions that it was given; the step has all of them.
TEST_F(ZoEngineTest, AProcessMeasuresSomeOfTheDirections) {
  ZoEngine engine(options());
  engine.stream(model.uses);
  take_step(engine);
  engine.begin_step({1});
  for (const std::vector<int>& module : model.modules()) {
    for (const int use : module) expect_bits(engine, use, 0, Side::kPlus, noise(1));
    for (const int use : module) engine.release(use, 0, kHost);
  }
  EXPECT_THROW(engine.acquire(0, 1, Side::kPlus, kHost), InvalidArgument);
  const std::vector<float> g = {0.5F, -2};
  const std::vector<StepRate> rates(kGroups, StepRate{1e-2, 0.1});
  engine.commit(g, rates);
  made.push_back({g, rates});
  note(step++);
  engine.begin_evaluation();
  expect_pass(engine, false);
  engine.finish();
  EXPECT_THROW(engine.begin_step({0, kDirections}), InvalidArgument);
  take_step(engine);
}

TEST_F(ZoEngineTest, AStepThatIsNotCommittedIsTheSameAgain) {
  ZoEngine engine(options());
  engine.stream(model.uses);
  take_step(engine);
  for (int i = 0; i < 3; ++i) {
    engine.begin_step();
    expect_bits(engine, 1, 1, Side::kMinus, noise(1));
    engine.release(1, 1, kHost);
    engine.finish();
    engine.finish();
  }
  engine.begin_step();
  // One rate too few.
  EXPECT_THROW(engine.commit(std::vector<float>(kDirections), std::vector<StepRate>(2), false),
               InvalidArgument);
  engine.finish();
  EXPECT_EQ(engine.log().next_step(), 1U);
  take_step(engine);
  take_step(engine);
}

TEST_F(ZoEngineTest, RollbackAndRestoreTellTheRing) {
  ZoEngine engine(options());
  engine.stream(model.uses);
  take_step(engine);
  const ZoUpdates then = updates;
  const std::vector<double> gammas_then = gammas;
  take_step(engine);
  take_step(engine);
  const ZoUpdates later = updates;
  const std::vector<double> gammas_later = gammas;
  const std::uint64_t entries = engine.log().history().entries();
  engine.rollback(1);
  updates = then, gammas = gammas_then, step = 1;
  take_step(engine);
  engine.branch(1, other.str());
  engine.restore(entries);
  updates = later, gammas = gammas_later, step = 3;
  take_step(engine);
  ZoEngineOptions of_branch = options();
  of_branch.log_path = other.str();
  ZoEngine branch(of_branch);
  branch.stream(model.uses);
  updates = then, gammas = gammas_then, step = 1;
  take_step(branch);
}

TEST_F(ZoEngineTest, OnlyWhatOneReplayTakesIsPending) {
  ZoEngine engine(options());
  engine.stream({model.uses.front()});
  const std::vector<StepRate> rates(kGroups);
  for (int i = 0; i < 512; ++i) {
    engine.begin_step();
    engine.commit(std::vector<float>(kDirections, 1.0F), rates, false);
  }
  EXPECT_THAT([&] { engine.begin_step(); },
              ThrowsMessage<InvalidArgument>(HasSubstr("1024 updates are pending")));
  EXPECT_EQ(engine.log().next_step(), 512U);
  engine.rollback(511);
  engine.begin_step();
  engine.finish();
}

TEST_F(ZoEngineTest, CallsOutOfTheirPlaceChangeNothing) {
  ZoEngine engine(options());
  EXPECT_THROW(engine.commit({}, {}, false), InvalidArgument);
  EXPECT_THAT([&] { engine.flush(); },
              ThrowsMessage<InvalidArgument>(HasSubstr("flush() needs mode write_back")));
  engine.begin_step();
  EXPECT_THROW(engine.acquire(0, 0, Side::kPlus, kHost), InvalidArgument);
  EXPECT_THROW(engine.stream(model.uses), InvalidArgument);
  engine.finish();
  engine.begin_evaluation();
  EXPECT_THROW(engine.commit(std::vector<float>(kDirections), {}, false), InvalidArgument);
  EXPECT_EQ(engine.log().next_step(), 0U);
  engine.finish();
  engine.stream(model.uses);
  take_step(engine);
}

// ---- Over an arena ------------------------------------------------------------------------------

// The model's own weights are the oracle's base.
class ZoEngineOnArenaTest : public ZoEngineTest {
 protected:
  void make_arena() {
    std::vector<const void*> known;
    for (StreamedWeight use : model.uses) {
      const auto at = static_cast<std::size_t>(std::ranges::find(known, use.host) - known.begin());
      if (at == known.size()) {
        known.push_back(use.host);
        weights.push_back({use.name, use.elements, use.dtype(), use.group});
        const std::span own(static_cast<const std::byte*>(use.host), use.bytes());
        bytes.emplace_back(own.begin(), own.end());
      }
      use.host = nullptr;
      use.source = static_cast<int>(at);
      uses.push_back(use);
    }
    ArenaOptions of_arena;
    of_arena.chunk_bytes = kArenaChunk;
    arena = ZoArena::create(budget, of_arena, weights, fill_from(bytes));
  }

  std::unique_ptr<ZoEngine> open() {
    ZoEngineOptions all = options();
    all.arena = arena.get();
    auto engine = std::make_unique<ZoEngine>(all);
    engine->stream(uses);
    return engine;
  }

  // Takes the arena's weights as the oracle's base from now on, with the updates after it.
  void take_base() {
    bytes = read_all(*arena);
    for (std::size_t i = 0; i < uses.size(); ++i) {
      model.uses[i].host = bytes.at(static_cast<std::size_t>(uses[i].source)).data();
    }
    updates = {};
    std::ranges::fill(gammas, 1);
    for (std::uint64_t s = arena->base().base.step; s < step; ++s) note(s);
  }

  void expect_steps(ZoEngine& engine, int count) {
    for (int i = 0; i < count; ++i) take_step(engine);
    engine.begin_evaluation();
    expect_pass(engine, false);
    engine.finish();
    EXPECT_EQ(engine.gammas(), gammas);
  }

  Budget budget = Budget::unlimited();
  std::vector<ArenaWeight> weights;
  WeightBytes bytes;
  std::vector<StreamedWeight> uses;
  std::unique_ptr<ZoArena> arena;
};

TEST_F(ZoEngineOnArenaTest, StepsAreThoseOverHostMemoryWithNewBasesOfF32BetweenThem) {
  model = RingModel(5);
  for (const int elements : {1031, 1, 4099, 67}) model.add(elements);
  model.tie(0);
  make_arena();
  const auto engine = open();
  for (int i = 0; i < 3; ++i) {
    expect_steps(*engine, 2);
    engine->consolidate({});  // Without decay in the first group the sums continue.
    EXPECT_EQ(engine->updates().records.size(), 0U);
    std::ranges::fill(gammas, 1);
  }
  expect_steps(*engine, 2);
}

TEST_F(ZoEngineOnArenaTest, ANewBaseHoldsWhatAnEvaluationSawAndIsGoneOnFrom) {
  make_arena();
  auto engine = open();
  for (int round = 0; round < 3; ++round) {
    expect_steps(*engine, 3);
    std::vector<std::vector<std::byte>> seen;
    for (int use = 0; use < std::ssize(uses); ++use) {
      seen.push_back(
          model.expected(use, Side::kPlus, std::nullopt, updates, NoiseFamily::kGaussian));
    }
    engine->consolidate({});
    take_base();
    for (std::size_t i = 0; i < uses.size(); ++i) {
      if (uses[i].dtype() != DType::kF32) continue;  // Others are rounded at random.
      EXPECT_EQ(bytes.at(static_cast<std::size_t>(uses[i].source)), seen[i]) << uses[i].name;
    }
    expect_steps(*engine, 1);
    if (round == 1) engine.reset(), engine = open();
  }
  EXPECT_THAT(
      [&] { engine->rollback(7); },
      ThrowsMessage<InvalidArgument>(HasSubstr("expected 11, the step of the base in use")));
  expect_steps(*engine, 1);
}

TEST_F(ZoEngineOnArenaTest, UpdatesAfterTheStepOfANewBaseStayPending) {
  make_arena();
  const auto engine = open();
  expect_steps(*engine, 5);
  engine->consolidate({.step = 3});
  EXPECT_EQ(engine->updates().records.size(), 2 * kDirections);
  take_base();
  expect_steps(*engine, 2);
  engine->rollback(4);
  step = 4;
  take_base();
  expect_steps(*engine, 2);
}

TEST_F(ZoEngineOnArenaTest, AFailedConsolidationChangesNothing) {
  make_arena();
  const auto engine = open();
  expect_steps(*engine, 2);
  ZoArena::Consolidation failing;
  failing.progress = [](std::uint64_t done, std::uint64_t) {
    if (done > 0) throw IoError("no", 5, "drive", 0);
  };
  for (int i = 0; i < 2; ++i) {
    EXPECT_THROW(engine->consolidate(failing), IoError);
    EXPECT_EQ(engine->log().base().step, 0U);
    expect_steps(*engine, 1);
  }
  engine->begin_step();
  EXPECT_THAT([&] { engine->consolidate({}); },
              ThrowsMessage<InvalidArgument>(HasSubstr("a pass has begun")));
  engine->finish();
  expect_steps(*engine, 1);
  ZoEngineOptions on_host = options();
  on_host.log_path = other.str();
  EXPECT_THAT([&] { ZoEngine(on_host).consolidate({}); },
              ThrowsMessage<InvalidArgument>(HasSubstr("the base is in host memory")));
}

TEST_F(ZoEngineOnArenaTest, ANewBaseWhoseRingHasNoRoomIsTheBaseAndTheNextPassMakesTheRing) {
  make_arena();
  ZoEngineOptions all = options();
  all.arena = arena.get();
  all.ring.lanes.limits.fill(std::uint64_t{1} << 30);
  Budget shared(all.ring.lanes.limits);
  all.ring.lanes.budget = shared;
  ZoEngine engine(all);
  EXPECT_FALSE(engine.streams());
  engine.stream(uses);
  expect_steps(engine, 2);
  std::optional<Budget::Reservation> others;
  ZoArena::Consolidation how;
  how.progress = [&](std::uint64_t, std::uint64_t) {
    if (others) return;
    const std::uint64_t left = shared.limit(Tier::kDevice) - shared.used(Tier::kDevice);
    others = shared.reserve(Tier::kDevice, left, "what others hold");
  };
  EXPECT_THROW(engine.consolidate(how), OutOfMemory);
  EXPECT_EQ(engine.log().base().step, 2U);
  for (int i = 0; i < 2; ++i) {
    EXPECT_TRUE(engine.streams());
    EXPECT_EQ(engine.take_use().h2d_bytes + engine.take_disk_read(), 0U);
    EXPECT_THROW(engine.begin_step(), OutOfMemory);
    EXPECT_THROW(engine.begin_evaluation(), OutOfMemory);
  }
  others.reset();
  take_base();
  expect_steps(engine, 2);
  EXPECT_GT(engine.take_use().h2d_bytes, 0U);
}

TEST_F(ZoEngineOnArenaTest, ATraceIsOfAllRings) {
  make_arena();
  const auto engine = open();
  engine->trace()->enable(true);
  std::size_t before = engine->trace()->range_count();
  for (int i = 0; i < 3; ++i) {
    expect_steps(*engine, 1);
    EXPECT_GT(engine->trace()->range_count(), before);
    before = engine->trace()->range_count();
    engine->consolidate({});
    EXPECT_GE(engine->trace()->range_count(), before);
    take_base();
  }
}

TEST_F(ZoEngineOnArenaTest, ANewBaseMakesRoomForMoreThanOneReplayTakes) {
  model = RingModel(3);
  model.add(67);
  make_arena();
  const auto engine = open();
  const std::vector<StepRate> rates(kGroups);
  const auto step_without_reads = [&] {
    engine->begin_step();
    engine->commit(std::vector<float>(kDirections, 1.0F), rates, false);
  };
  for (int i = 0; i < 512; ++i) step_without_reads();
  EXPECT_THROW(engine->begin_step(), InvalidArgument);
  engine->consolidate({.step = 511});
  step_without_reads();
  EXPECT_EQ(engine->updates().records.size(), 2 * kDirections);
}

}  // namespace
}  // namespace sluiceway::test
