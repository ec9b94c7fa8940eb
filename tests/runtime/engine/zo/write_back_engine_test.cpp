// ZoEngine in mode write_back, on the host and on CUDA device 0: steps are in every weight once,
// streamed or not, whatever crosses the link; and misplaced calls change nothing.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <array>
#include <atomic>
#include <cstring>
#include <future>
#include <latch>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <tuple>
#include <vector>

#include "kernels/base/error.h"
#include "runtime/device/link_copy.h"
#include "runtime/engine/zo/zo_engine.h"
#include "runtime/memory/buffer.h"
#include "tests/support/backend.h"
#include "tests/support/fp8_reference.h"
#include "tests/support/ring_model.h"
#include "tests/support/stream_work.h"

namespace sluiceway::test {
namespace {

using testing::HasSubstr;
using testing::ThrowsMessage;

using Wire = std::optional<WeightForm>;  // None: masters cross as they are.

constexpr double kLr = 0.25, kDecay = 0.5;  // Their product and 1 minus it are exact.

class WriteBackEngineTest : public testing::TestWithParam<std::tuple<DeviceId, Wire>> {
 protected:
  WriteBackEngineTest() {
    stream.enqueue([this](StreamRef ref) { compute = ref; });
    stream.synchronize();
    for (RingModel* each : {&model, &oracle}) {
      for (const int elements : {67, 4099, 1031}) each->add(elements);
    }
  }

  ZoEngineOptions options() const {
    ZoEngineOptions all(device);
    all.mode = ZoMode::kWriteBack;
    all.ring.lanes.limits.fill(Budget::kUnlimited);
    all.shape.run_seed = 77;
    all.shape.noise.family = static_cast<std::uint32_t>(family);
    all.shape.directions = 2;
    all.threads = 2;
    all.wire = wire;
    return all;
  }

  // Options that continue from the step of the masters.
  ZoEngineOptions options_of(int depth) const {
    ZoEngineOptions all = options();
    all.step = step;
    all.ring.depth = ring_depth(depth, !wire);
    return all;
  }

  // The measured losses do not affect the step's arithmetic.
  void take_step(ZoEngine& engine, bool streams = true) {
    engine.begin_step();
    for (const int direction : {0, 1}) {
      if (!streams) break;
      engine.acquire(0, direction, Side::kPlus, compute);
      engine.release(0, direction, compute);
    }
    commit(engine);
  }

  void commit(ZoEngine& engine) {
    const std::array<float, 2> g = {static_cast<float>(model.rng().normal()), 0.5F};
    engine.commit(g, std::array{StepRate{kLr, kDecay}});
    for (const StreamedWeight& weight : oracle.uses) {
      const std::uint64_t tensor = stable_hash(weight.name);
      const float gamma = 1 - static_cast<float>(kLr * kDecay);
      std::vector<PendingUpdate> pending;
      for (std::uint32_t d = 0; d < 2; ++d) {
        const double scale = -(kLr * double{g[d]}) / (2 * double{gamma});
        pending.push_back({{77, step, tensor, d}, static_cast<float>(scale)});
      }
      const std::span own(static_cast<std::byte*>(const_cast<void*>(weight.host)), weight.bytes());
      cpu::materialise(own, weight.dtype(), own, weight.dtype(), {family, 0, gamma, pending});
    }
    ++step;
  }

  // Returns the two copies that a forward reads of a use: from the oracle's master, or from the
  // image that crosses.
  std::array<std::vector<std::byte>, 2> expected(int use, int direction, bool is_step) const {
    const StreamedWeight& weight = oracle.uses[static_cast<std::size_t>(use)];
    std::vector<std::byte> crosses = bytes_of(weight), plus(weight.bytes()), minus(weight.bytes());
    const WeightForm form = wire.value_or(weight.dtype());
    if (form.is_fp8_image()) {
      const auto* const master = static_cast<const float*>(weight.host);
      crosses = reference_fp8_image({master, static_cast<std::size_t>(weight.elements)});
    } else if (form != WeightForm(weight.dtype())) {
      const std::vector<std::byte> master = crosses;
      crosses.resize(form.bytes(static_cast<std::uint64_t>(weight.elements)));
      cpu::materialise(master, weight.dtype(), crosses, form.dtype(), {});
    }
    const NoiseKey key{77, step, stable_hash(weight.name), static_cast<std::uint32_t>(direction)};
    cpu::perturb(crosses, form, plus, minus, weight.dtype(), {family}, key, is_step ? 1e-3F : 0.0F);
    return {plus, minus};
  }

  // A copy by the computing stream, made when the stream gets to it.
  struct Look {
    std::string what;
    std::vector<std::byte> expected;
    const std::byte* seen;
  };

  void look(ZoEngine& engine, int use, int direction, bool is_step) {
    const DeviceGuard guard(device);
    const auto sides = expected(use, direction, is_step);
    for (const Side side : {Side::kPlus, Side::kMinus}) {
      const std::vector<std::byte>& of_side = sides[side == Side::kPlus ? 0 : 1];
      std::byte* const seen = memory.data() + memory_used;
      memory_used += of_side.size();
      ASSERT_LE(memory_used, memory.size());
      looks.push_back(
          {concat("w", use, " of step ", step, ", direction ", direction), of_side, seen});
      out.copy(seen, engine.acquire(use, direction, side, compute), of_side.size(), compute);
    }
    engine.release(use, direction, compute);
  }

  void expect_looks() {
    wait_for(compute);
    for (const Look& look : looks) {
      EXPECT_EQ(std::memcmp(look.seen, look.expected.data(), look.expected.size()), 0) << look.what;
    }
    looks.clear();
    memory_used = 0;
  }

  static std::vector<std::byte> bytes_of(const StreamedWeight& weight) {
    const auto* const bytes = static_cast<const std::byte*>(weight.host);
    return {bytes, bytes + weight.bytes()};
  }
  static std::vector<std::vector<std::byte>> masters_of(const RingModel& of) {
    std::vector<std::vector<std::byte>> masters;
    for (const StreamedWeight& weight : of.uses) masters.push_back(bytes_of(weight));
    return masters;
  }
  void expect_masters() const {
    EXPECT_EQ(masters_of(model), masters_of(oracle)) << "step " << step;
  }

  const DeviceId device = std::get<DeviceId>(GetParam());
  const Wire wire = std::get<Wire>(GetParam());
  RingModel model{5}, oracle{5};
  NoiseFamily family = NoiseFamily::kRademacher;
  std::uint64_t step = 0;
  Stream stream = Stream::owned(device, {"compute"});
  StreamRef compute = StreamRef::host();
  LinkCopy out{device, LinkDirection::kDeviceToHost, {}};
  Budget budget = Budget::unlimited();
  // Page-locked for all looks at once, since page-locking may wait for a device that the test
  // holds.
  Buffer memory{budget, Tier::kPinned, device, 256 << 10, "looks"};
  std::size_t memory_used = 0;
  std::vector<Look> looks;
};

TEST_P(WriteBackEngineTest, WeightsThatNoPassStreamsHaveEveryStepToo) {
  ZoEngine engine(options());
  engine.hold(model.uses);
  take_step(engine, false);
  for (const int streamed : {1, 2, 1}) {
    engine.stream({model.uses[static_cast<std::size_t>(streamed)]});
    for (int i = 0; i < 3; ++i) take_step(engine);
    engine.begin_evaluation();
    engine.finish();
    take_step(engine);
    if (streamed == 2) continue;  // The next forward begins with the state that this one left.
    engine.flush();
    expect_masters();
  }
  EXPECT_EQ(engine.next_step(), step);
}

TEST_P(WriteBackEngineTest, AForwardReadsTheNeighboursOfWhatCrosses) {
  for (const int depth : {2, 8}) {
    // Threads would split its elements into smaller parts than an image has.
    if (depth == 8) family = NoiseFamily::kGaussian;
    ZoEngine engine(options_of(depth));
    engine.hold(model.uses);
    engine.stream(model.uses);
    for (int i = 0; i < 4; ++i) {
      engine.begin_step();
      for (const int use : {0, 1, 2}) {
        for (const int direction : {0, 1}) look(engine, use, direction, true);
      }
      expect_looks();
      commit(engine);
      engine.begin_evaluation();
      for (const int use : {0, 1, 2}) look(engine, use, 0, false);
      expect_looks();
      engine.finish();
    }
    engine.flush();
    expect_masters();
  }
}

// An evaluation and a step are enqueued as far as the ring allows, before the device computes.
TEST_P(WriteBackEngineTest, WhatIsReadLateIsStillThereThoughWeightsGoBack) {
  for (const int depth : {1, 2}) {
    ZoEngine engine(options_of(depth));
    engine.hold(model.uses);
    engine.stream(model.uses);
    for (int i = 0; i < 4; ++i) {
      Gate gate(device);
      gate.hold(stream);
      const std::jthread opener([&gate] {
        sleep_ms(20);
        gate.open();
      });
      engine.begin_evaluation();
      for (const int use : {0, 1, 2}) look(engine, use, 0, false);
      engine.finish();
      engine.begin_step();
      for (const int use : {0, 1, 2}) {
        for (const int direction : {0, 1}) look(engine, use, direction, true);
      }
      expect_looks();
      commit(engine);
    }
    engine.flush();
    expect_masters();
  }
}

TEST_P(WriteBackEngineTest, ASnapshotIsReadOfItsStepWhileStepsGoOn) {
  ZoEngine engine(options());
  engine.hold(model.uses);
  engine.stream({model.uses[0], model.uses[2]});
  for (int i = 0; i < 2; ++i) take_step(engine);
  const std::vector<std::vector<std::byte>> then = masters_of(oracle);
  const std::shared_ptr<MasterSnapshot> taken = engine.begin_snapshot();
  auto reading = std::async(std::launch::async, [&] {
    std::vector<std::vector<std::byte>> read;
    for (std::size_t i = 0; i < model.uses.size(); ++i) {
      taken->wait(i);
      read.push_back(bytes_of(model.uses[i]));
      taken->let_go(i);
    }
    return read;
  });
  for (int i = 0; i < 3; ++i) take_step(engine);
  EXPECT_EQ(reading.get(), then);
  engine.flush();
  expect_masters();
}

TEST_P(WriteBackEngineTest, WhoeverPutsOtherWeightsThereSaysOfWhichStepTheyAre) {
  ZoEngine engine(options());
  engine.hold(model.uses);
  engine.stream({model.uses[1]});
  take_step(engine);
  take_step(engine);
  engine.flush();
  const std::vector<std::vector<std::byte>> saved = masters_of(oracle);
  const std::uint64_t then = step;
  for (int i = 0; i < 3; ++i) take_step(engine);
  engine.restart(then);
  for (std::size_t i = 0; i < saved.size(); ++i) {
    for (const RingModel* each : {&model, &oracle}) {
      std::memcpy(const_cast<void*>(each->uses[i].host), saved[i].data(), saved[i].size());
    }
  }
  step = then;
  for (int i = 0; i < 3; ++i) take_step(engine);
  engine.flush();
  expect_masters();
}

std::string case_name(const testing::TestParamInfo<std::tuple<DeviceId, Wire>>& param) {
  const auto& [device, wire] = param.param;
  const std::string form = wire ? std::string(to_string(*wire)) : "as_it_is";
  return form + (device.is_host() ? "_cpu" : "_cuda");
}

INSTANTIATE_TEST_SUITE_P(Devices, WriteBackEngineTest,
                         testing::Combine(testing::ValuesIn(built_devices()),
                                          testing::Values(Wire(), Wire(DType::kBF16),
                                                          Wire(DType::kF16),
                                                          Wire(WeightForm::fp8_image()))),
                         case_name);

TEST(WriteBackEngineCallsTest, AfterAFailureItGoesOnWithOtherWeights) {
  RingModel model(1);
  for (int i = 0; i < 3; ++i) model.add(67);
  std::atomic<bool> fails = true;
  std::latch has_begun(1);  // The first call after a failure reports it.
  ZoEngineOptions options(DeviceId::host());
  options.mode = ZoMode::kWriteBack;
  options.ring.lanes.limits.fill(Budget::kUnlimited);
  options.ring.before_hop = [&](LaneId, int use) {
    if (!fails || use != 1) return;
    has_begun.wait();
    throw Error("planted");
  };
  ZoEngine engine(options);
  engine.hold(model.uses);
  engine.stream(model.uses);
  engine.begin_step();
  has_begun.count_down();
  EXPECT_THAT([&] { engine.acquire(1, 0, Side::kPlus, StreamRef::host()); },
              ThrowsMessage<Error>(HasSubstr("planted")));
  fails = false;
  engine.restart(4);
  EXPECT_TRUE(engine.streams());
  engine.begin_step();
  engine.acquire(1, 0, Side::kPlus, StreamRef::host());
  const std::array<float, 1> g = {1};
  const std::array rates = {StepRate{1e-3, 0}};
  EXPECT_THAT([&] { engine.commit(g, rates); },
              ThrowsMessage<InvalidArgument>(HasSubstr("w1 is acquired")));
  EXPECT_EQ(engine.next_step(), 4U);
  engine.release(1, 0, StreamRef::host());
  engine.commit(g, rates);
  EXPECT_EQ(engine.next_step(), 5U);
  engine.begin_step();
  engine.acquire(0, 0, Side::kPlus, StreamRef::host());
  engine.restart(2);  // Acquired weights are dropped with the ring.
  EXPECT_EQ(engine.next_step(), 2U);
  EXPECT_FALSE(engine.is_passing());
}

TEST(WriteBackEngineCallsTest, AMasterThatIsKeptInOneUseIsKeptInAll) {
  RingModel model(2);
  model.add(67);
  model.uses[0].keep = true;
  ZoEngineOptions options(DeviceId::host());
  options.mode = ZoMode::kWriteBack;
  options.ring.lanes.limits.fill(Budget::kUnlimited);
  options.wire = DType::kBF16;
  ZoEngine engine(options);
  engine.hold(model.uses);
  std::vector<StreamedWeight> uses(2, model.uses[0]);
  uses[1].keep = false;
  uses[1].module = uses[0].module + 1;
  engine.stream(uses);
  EXPECT_TRUE(engine.ring().is_resident(0));
  EXPECT_TRUE(engine.ring().is_resident(1));
}

TEST(WriteBackEngineCallsTest, OutOfTheirPlaceTheyChangeNothing) {
  RingModel model(1);
  model.add(67);
  ZoEngineOptions options(DeviceId::host());
  options.mode = ZoMode::kWriteBack;
  options.ring.lanes.limits.fill(Budget::kUnlimited);
  ZoEngine engine(options);
  engine.hold(model.uses);
  EXPECT_THAT([&] { engine.hold(model.uses); },
              ThrowsMessage<InvalidArgument>(HasSubstr("call hold() once")));
  EXPECT_THAT([&] { engine.rollback(0); },
              ThrowsMessage<InvalidArgument>(HasSubstr("rollback() needs mode log")));
  engine.stream(model.uses);
  const std::array<float, 1> g = {1};
  const std::array rates = {StepRate{2, 0.5}};
  EXPECT_THAT([&] { engine.commit(g, rates); },
              ThrowsMessage<InvalidArgument>(HasSubstr("no pass has begun")));
  engine.begin_step();
  EXPECT_THAT([&] { engine.flush(); },
              ThrowsMessage<InvalidArgument>(HasSubstr("a pass has begun")));
  EXPECT_THAT([&] { engine.commit({}, rates); },
              ThrowsMessage<InvalidArgument>(HasSubstr("0 gradients and 1 rates, expected 1")));
  EXPECT_THAT([&] { engine.commit(g, rates); },
              ThrowsMessage<InvalidArgument>(HasSubstr("expected below 1")));
  EXPECT_TRUE(engine.is_passing());
  engine.finish();
  EXPECT_EQ(engine.next_step(), 0U);
  options.wire = DType::kF32;
  EXPECT_THAT([&] { ZoEngine{options}; },
              ThrowsMessage<InvalidArgument>(HasSubstr("expected a form of 16 bits")));
  options.ring.resident_room = 5;
  EXPECT_THAT([&] { ZoEngine{options}; },
              ThrowsMessage<InvalidArgument>(HasSubstr("5 bytes of resident_room")));
}

}  // namespace
}  // namespace sluiceway::test
