// AdamW with its states in a store, through the lanes, has the very bits of AdamW in memory: on any
// store, in any order of the lanes, over any link, and whatever happened to steps in between.
#include "runtime/engine/offload/offload_engine.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <memory>
#include <string>
#include <vector>

#include "kernels/base/error.h"
#include "tests/support/io_back_ends.h"
#include "tests/support/offload_reference.h"
#include "tests/support/rng.h"

namespace sluiceway::test {
namespace {

using testing::AllOf;
using testing::HasSubstr;
using testing::ThrowsMessage;

const std::vector<TensorSpec> kModel = mixed_specs();

struct Case {
  std::string name;
  int batches = 1;
  double max_norm = 0;
  Order order = Order::kEdf;
  bool slow_link = false;
  int promised = 0;
  UpdatePolicy policy = UpdatePolicy::kSpill;
  std::uint64_t park_bytes = 0;
  StateCodec codec = StateCodec::kFp32;
};

class OffloadEngineTest : public testing::TestWithParam<Case> {
 protected:
  OffloadOptions options(const std::vector<std::string>& drives = {},
                         IoChoice io = IoChoice::kAuto) const {
    OffloadOptions made = small_chunk_options(drives, io);
    made.gate.max_norm = GetParam().max_norm;
    made.gate.promised_backwards = GetParam().promised;
    made.lanes.order = GetParam().order;
    made.policy = GetParam().policy;
    made.park_bytes = GetParam().park_bytes;
    made.state_codec = GetParam().codec;
    if (GetParam().slow_link) made.lanes.d2h = made.lanes.h2d = {0.02, 50};
    return made;
  }
};

TEST_P(OffloadEngineTest, EveryStepHasTheBitsOfAdamWInMemory) {
  OffloadEngine engine(options(), kModel);
  OffloadModel model(kModel, 7);
  OffloadReference reference(model, GetParam().codec);
  engine.begin(model.tensors());
  for (std::int64_t step = 1; step <= 5; ++step) {
    const StepOutcome outcome = run_step(engine, model, step, GetParam().batches);
    const double norm = kStepFactor * reference.norm(step, GetParam().batches);
    const double most = GetParam().max_norm > 0 ? GetParam().max_norm : norm;
    EXPECT_FALSE(outcome.skipped);
    EXPECT_NEAR(outcome.grad_norm, norm, 1e-6 * norm);
    EXPECT_NEAR(outcome.clip_factor, std::min(1.0, most / norm), 2e-6);
    reference.step(step, GetParam().batches, kStepFactor * outcome.clip_factor);
    for (int t = 0; t < model.size(); ++t) engine.acquire(t, StreamRef::host());
    ASSERT_EQ(reference.difference(model), "") << "after step " << step;
  }
  ASSERT_EQ(reference.state_difference(engine), "");
}

TEST_P(OffloadEngineTest, FilesGiveTheBitsOfMemoryThroughEveryBackEnd) {
  OffloadEngine in_memory(options(), kModel);
  OffloadModel expected(kModel, 8);
  in_memory.begin(expected.tensors());
  for (std::int64_t step = 1; step <= 3; ++step) {
    run_step(in_memory, expected, step, GetParam().batches);
  }
  in_memory.synchronize();
  for (const IoChoice io : {IoChoice::kPosix, IoChoice::kAuto}) {
    const ScratchPath first, second;
    OffloadModel model(kModel, 8);
    {
      OffloadEngine engine(options({first.str(), second.str()}, io), kModel);
      EXPECT_TRUE(engine.is_new());
      engine.begin(model.tensors());
      run_step(engine, model, 1, GetParam().batches);
      engine.close();
    }
    OffloadEngine engine(options({first.str(), second.str()}, io), kModel);
    EXPECT_FALSE(engine.is_new());
    OffloadModel again(kModel, 99);  // Its content is overwritten.
    engine.resume(again.tensors());
    EXPECT_EQ(engine.committed_steps(), 1);
    for (std::int64_t step = 2; step <= 3; ++step) {
      run_step(engine, again, step, GetParam().batches);
    }
    engine.synchronize();
    EXPECT_EQ(difference(again, expected), "");
  }
}

// Copies what every block brings into the model.
void fetch_all(OffloadEngine& engine, OffloadModel& model, WeightFetch::Phase phase,
               const std::vector<std::vector<int>>& blocks) {
  const bool forward = phase == WeightFetch::Phase::kForward;
  const std::vector<AnyMatrix> into = model.tensors();
  for (int k = 0; k < std::ssize(blocks); ++k) {
    const int block = forward ? k : static_cast<int>(blocks.size()) - 1 - k;
    const std::vector<const void*> found = engine.fetch().acquire(phase, block, StreamRef::host());
    for (std::size_t i = 0; i < found.size(); ++i) {
      const int tensor = blocks[static_cast<std::size_t>(block)][i];
      std::memcpy(into[static_cast<std::size_t>(tensor)].data, found[i],
                  model.bytes(tensor).size());
    }
    engine.fetch().release(phase, block, StreamRef::host());
  }
}

void scribble(OffloadModel& model, const std::vector<std::vector<int>>& blocks) {
  const std::vector<AnyMatrix> weights = model.tensors();
  for (const std::vector<int>& block : blocks) {
    for (const int tensor : block) {
      std::memset(weights[static_cast<std::size_t>(tensor)].data, 0xFF, model.bytes(tensor).size());
    }
  }
}

TEST_P(OffloadEngineTest, StreamedWeightsHaveTheBitsOfAdamWInMemory) {
  // Those that have chunks of their own; the head stays on the device.
  const std::vector<std::vector<int>> blocks = {{0}, {3, 5}};
  std::vector<TensorSpec> specs = kModel;
  for (const std::size_t tensor : {0U, 3U, 5U, 6U}) specs[tensor].streamed = true;
  specs[6].resident = true;
  const ScratchPath drive;
  for (const bool on_disk : {false, true}) {
    OffloadModel model(specs, 7);
    OffloadReference reference(model, GetParam().codec);
    const std::vector<std::string> drives =
        on_disk ? std::vector{drive.str()} : std::vector<std::string>();
    auto engine = std::make_unique<OffloadEngine>(options(drives), specs);
    engine->begin(model.tensors());
    engine->stream(blocks, on_disk ? 1 : 0);
    for (std::int64_t step = 1; step <= 4; ++step) {
      for (int batch = 0; batch < GetParam().batches; ++batch) {
        for (const auto phase : {WeightFetch::Phase::kForward, WeightFetch::Phase::kBackward}) {
          scribble(model, blocks);
          fetch_all(*engine, model, phase, blocks);
          for (int t = 0; t < model.size(); ++t) engine->acquire(t, StreamRef::host());
          ASSERT_EQ(reference.difference(model), "") << "before step " << step;
        }
      }
      scribble(model, blocks);  // The engine does not need them, and does not write them.
      const StepOutcome outcome = run_step(*engine, model, step, GetParam().batches);
      reference.step(step, GetParam().batches, kStepFactor * outcome.clip_factor);
      if (!on_disk || step != 2) continue;
      engine->close();
      engine = nullptr;
      engine = std::make_unique<OffloadEngine>(options(drives), specs);
      engine->resume(model.tensors());
      engine->stream(blocks, 2);
    }
    for (const std::vector<int>& block : blocks) {
      for (const int t : block) {
        const std::uint64_t bytes = engine->stored_weight(t).bytes();
        std::vector<std::byte> weight(bytes + kBlockBytes);
        const auto past = reinterpret_cast<std::uintptr_t>(weight.data()) % kBlockBytes;
        const auto whole = std::span(weight).subspan((kBlockBytes - past) % kBlockBytes, bytes);
        engine->read_weight(t, whole);
        std::memcpy(model.tensors()[static_cast<std::size_t>(t)].data, whole.data(),
                    model.bytes(t).size());
      }
    }
    engine->synchronize();
    EXPECT_EQ(reference.difference(model), "");
    EXPECT_EQ(reference.state_difference(*engine), "");
  }
}

// A weight that is written anew is what the next forward reads, whatever was on its way.
TEST(StreamedWeightsTest, AStateThatIsLoadedReachesTheNextForward) {
  std::vector<TensorSpec> specs = {{"a", {64, 64}, DType::kBF16}, {"b", {64, 64}, DType::kBF16}};
  for (TensorSpec& spec : specs) spec.streamed = true;
  const std::vector<std::vector<int>> blocks = {{0}, {1}};
  OffloadEngine engine(small_chunk_options(), specs);
  OffloadModel model(specs, 3);
  engine.begin(model.tensors());
  engine.stream(blocks, 1);
  fetch_all(engine, model, WeightFetch::Phase::kForward, blocks);  // Its backward never comes.
  const std::size_t elems = 64 * 64;
  std::vector<float> m(elems), v(elems), master(elems, 0.75F);
  engine.write_state(0, {m, v, master}, 5);
  fetch_all(engine, model, WeightFetch::Phase::kForward, blocks);
  const AnyMatrix weight = model.tensors()[0];
  const std::span found(static_cast<const bf16*>(weight.data), elems);
  EXPECT_TRUE(std::ranges::all_of(found, [](bf16 x) { return to_float(x) == 0.75F; }));
}

// A streamed matrix of 64 rows for each number of columns.
std::vector<TensorSpec> one_matrix_each(const std::vector<std::int64_t>& columns) {
  std::vector<TensorSpec> specs;
  for (const std::int64_t each : columns) {
    specs.push_back({concat("w", specs.size()), {64, each}, DType::kBF16});
    specs.back().streamed = true;
  }
  return specs;
}

// The last 1 + `ahead` blocks stay in their slots between forward and backward.
TEST(StreamedWeightsTest, AStepFetchesTheLastBlocksOnceAndTheOthersTwice) {
  const std::vector<TensorSpec> specs = one_matrix_each({64, 64, 64, 64});
  const std::vector<std::vector<int>> blocks = {{0}, {1}, {2}, {3}};
  for (const int ahead : {0, 1, 2, 5}) {
    OffloadEngine engine(small_chunk_options(), specs);
    OffloadModel model(specs, 3);
    const OffloadModel begun = model;
    engine.begin(model.tensors());
    engine.stream(blocks, ahead);
    for (int step = 0; step < 3; ++step) {
      engine.take_stats();
      for (const auto phase : {WeightFetch::Phase::kForward, WeightFetch::Phase::kBackward}) {
        scribble(model, blocks);
        fetch_all(engine, model, phase, blocks);
        EXPECT_EQ(model.bytes(0), begun.bytes(0));
        EXPECT_EQ(model.bytes(3), begun.bytes(3));
      }
      const auto fetches = static_cast<std::uint64_t>(8 - std::min(4, 1 + ahead));
      EXPECT_EQ(engine.take_stats().use.h2d_bytes, fetches * 64 * 64 * 2U);
      engine.fetch().finish();
    }
  }
}

// Blocks that are skipped, run again, acquired twice or left out of the backward.
TEST(StreamedWeightsTest, BlocksInAnyOrderHaveTheirOwnBits) {
  Rng rng(11);
  for (const int ahead : {0, 1, 2}) {
    const std::vector<TensorSpec> specs = one_matrix_each({64, 80, 96, 64, 80});
    OffloadEngine engine(small_chunk_options(), specs);
    OffloadModel model(specs, 3);
    engine.begin(model.tensors());
    engine.stream({{0}, {1}, {2}, {3}, {4}}, ahead);
    WeightFetch& fetch = engine.fetch();
    for (int turn = 0; turn < 400; ++turn) {
      if (rng.below(16) == 0) fetch.finish();
      const auto phase =
          rng.below(2) == 0 ? WeightFetch::Phase::kForward : WeightFetch::Phase::kBackward;
      const int block = static_cast<int>(rng.below(model.size()));
      const int times = 1 + static_cast<int>(rng.below(2));
      for (int time = 0; time < times; ++time) {
        const std::vector<const void*> found = fetch.acquire(phase, block, StreamRef::host());
        const std::vector<std::byte>& expected = model.bytes(block);
        ASSERT_EQ(std::memcmp(found.at(0), expected.data(), expected.size()), 0)
            << "block " << block << " of turn " << turn << ", " << ahead << " ahead";
      }
      EXPECT_THAT([&] { fetch.finish(); },
                  ThrowsMessage<InvalidArgument>(HasSubstr("is acquired")));
      for (int time = 0; time < times; ++time) fetch.release(phase, block, StreamRef::host());
      EXPECT_THAT([&] { fetch.release(phase, block, StreamRef::host()); },
                  ThrowsMessage<InvalidArgument>(HasSubstr("is not acquired")));
    }
  }
}

// Block 0 calls the last one, which then waits in its slot, and another one that needs the slot.
TEST(StreamedWeightsTest, ABlockMayCallOthers) {
  const std::vector<TensorSpec> specs = one_matrix_each({64, 64, 64, 64});
  const std::vector<std::vector<int>> blocks = {{0}, {1}, {2}, {3}};
  OffloadEngine engine(small_chunk_options(), specs);
  OffloadModel model(specs, 3);
  engine.begin(model.tensors());
  engine.stream(blocks, 1);
  WeightFetch& fetch = engine.fetch();
  constexpr auto kForward = WeightFetch::Phase::kForward;
  fetch.acquire(kForward, 0, StreamRef::host());
  for (const int inner : {3, 2, 3, 1, 3}) {
    const std::vector<const void*> found = fetch.acquire(kForward, inner, StreamRef::host());
    const std::vector<std::byte>& expected = model.bytes(inner);
    EXPECT_EQ(std::memcmp(found.at(0), expected.data(), expected.size()), 0);
    fetch.release(kForward, inner, StreamRef::host());
  }
  fetch.release(kForward, 0, StreamRef::host());
}

// A frozen tensor has its weight in the store, no states, and no extents.
TEST(StreamedWeightsTest, AFrozenTensorIsReadAndNeverWritten) {
  std::vector<TensorSpec> specs = {{"base", {64, 128}, DType::kBF16},
                                   {"a", {64, 64}, DType::kBF16},
                                   {"b", {64, 64}, DType::kF32}};
  specs[0].streamed = specs[0].frozen = specs[1].streamed = true;
  const std::vector<std::vector<int>> blocks = {{0, 1}};
  const auto trains = [](int tensor, int) { return tensor > 0; };
  for (const StateCodec codec : {StateCodec::kFp32, StateCodec::k8Bit}) {
    const ScratchPath drive;
    OffloadModel model(specs, 5);
    const OffloadModel begun = model;
    OffloadReference reference(model, codec);
    OffloadOptions options = small_chunk_options({drive.str()});
    options.state_codec = codec;
    auto engine = std::make_unique<OffloadEngine>(options, specs);
    EXPECT_EQ(engine->store().layout().regions[StateStream::kGradientRegion].chunks, 2U);
    engine->begin(model.tensors());
    engine->stream(blocks, 1);
    for (std::int64_t step = 1; step <= 3; ++step) {
      const StepOutcome outcome = run_step(*engine, model, step, 2, trains);
      reference.step(step, 2, kStepFactor * outcome.clip_factor, trains);
      if (step != 2) continue;
      engine->close();
      engine = nullptr;
      engine = std::make_unique<OffloadEngine>(options, specs);
      engine->resume(model.tensors());
      engine->stream(blocks, 1);
    }
    scribble(model, blocks);
    fetch_all(*engine, model, WeightFetch::Phase::kForward, blocks);
    engine->synchronize();
    EXPECT_EQ(reference.difference(model), "");
    EXPECT_EQ(model.bytes(0), begun.bytes(0));
    std::vector<float> state(64 * 128);
    EXPECT_THAT(
        [&] {
          engine->read_state(0, {state, state, state});
        },
        ThrowsMessage<InvalidArgument>(HasSubstr("base, which is frozen")));
  }
}

TEST(StreamedWeightsTest, WhatCannotBeStreamedIsRefusedByName) {
  std::vector<TensorSpec> specs = kModel;
  specs[1].streamed = true;  // Shares its chunk.
  EXPECT_THAT([&] { OffloadEngine(small_chunk_options(), specs); },
              ThrowsMessage<InvalidArgument>(HasSubstr("shares its chunk with")));
  OffloadEngine engine(small_chunk_options(), kModel);
  OffloadModel model(kModel, 3);
  EXPECT_THAT([&] { engine.fetch(); }, ThrowsMessage<InvalidArgument>(HasSubstr("stream()")));
  EXPECT_THAT([&] { engine.stream({{0}}, 1); },
              ThrowsMessage<InvalidArgument>(HasSubstr("begin()")));
  engine.begin(model.tensors());
  EXPECT_THAT([&] { engine.stream({{0}}, 1); },
              ThrowsMessage<InvalidArgument>(HasSubstr("embedding is not streamed")));
  EXPECT_THAT([&] { engine.stream({}, 1); }, ThrowsMessage<InvalidArgument>(HasSubstr("0 blocks")));
}

constexpr UpdatePolicy kEarly = UpdatePolicy::kSpeculative, kLate = UpdatePolicy::kSpill;
constexpr StateCodec kBf16 = StateCodec::kBf16, k8Bit = StateCodec::k8Bit;

INSTANTIATE_TEST_SUITE_P(
    Ways, OffloadEngineTest,
    testing::Values(Case{"Plain"}, Case{"Clipped", 1, 0.5}, Case{"Three", 3},
                    Case{"ThreeClippedPromised", 3, 0.25, Order::kFcfs, false, 3},
                    Case{"Barrier", 2, 0, Order::kBarrier},
                    Case{"SlowLink", 1, 0, Order::kEdf, true},
                    Case{"Speculative", 1, 0, Order::kEdf, false, 1, kEarly},
                    Case{"SpeculativeParked", 1, 0, Order::kPaper, true, 1, kEarly, 1U << 30U},
                    Case{"SpeculativePartlyParked", 1, 0, Order::kFcfs, false, 1, kEarly, 30000},
                    Case{"SpeculativeNearlyClipped", 1, 1e6, Order::kBarrier, false, 1, kEarly},
                    Case{"SpeculativeClipped", 1, 0.5, Order::kEdf, false, 1, kEarly, 1U << 30U},
                    Case{"SpeculativeThree", 3, 0.25, Order::kEdf, false, 3, kEarly},
                    Case{"SpeculativeUnpromised", 2, 0, Order::kEdf, false, 0, kEarly},
                    Case{"Bf16States", 1, 0.5, Order::kEdf, false, 0, kLate, 0, kBf16},
                    Case{"Bf16StatesSpeculative", 3, 0, Order::kFcfs, false, 3, kEarly, 0, kBf16},
                    Case{"EightBits", 1, 0, Order::kEdf, true, 0, kLate, 0, k8Bit},
                    Case{"EightBitsThreeClipped", 3, 0.25, Order::kEdf, false, 0, kLate, 0, k8Bit},
                    Case{"EightBitsSpeculative", 1, 0, Order::kEdf, false, 1, kEarly, 0, k8Bit},
                    Case{"EightBitsRedone", 1, 0.5, Order::kEdf, false, 1, kEarly, 30000, k8Bit}),
    [](const auto& tested) { return tested.param.name; });

TEST(OffloadEngineStepTest, TensorsWithoutAGradientStayAsTheyAreWithTheirStepCount) {
  OffloadEngine engine(small_chunk_options(), kModel);
  OffloadModel model(kModel, 9);
  OffloadReference reference(model);
  engine.begin(model.tensors());
  for (std::int64_t step = 1; step <= 4; ++step) {
    const auto has = [step](int tensor, int batch) {
      return (tensor + batch + static_cast<int>(step)) % 3 != 0;
    };
    run_step(engine, model, step, 2, has);
    reference.step(step, 2, kStepFactor, has);
  }
  engine.synchronize();
  EXPECT_EQ(reference.difference(model), "");
  EXPECT_EQ(reference.state_difference(engine), "");
  for (int t = 0; t < model.size(); ++t) EXPECT_EQ(engine.tensor_steps(t), reference.steps(t));
}

TEST(OffloadEngineStepTest, AGradientThatIsNotFiniteSkipsTheStepWhereverItIs) {
  OffloadEngine engine(small_chunk_options(), kModel);
  OffloadModel model(kModel, 10);
  engine.begin(model.tensors());
  const OffloadModel before = model;
  for (int t = 0; t < model.size(); ++t) {
    for (const float bad : {std::numeric_limits<float>::infinity(),
                            std::numeric_limits<float>::quiet_NaN(), 3.4e38F}) {
      OffloadGradients gradients(model, 1, 0);
      gradients.poison(t, bad);  // 3.4e38 is finite, but infinite as bf16.
      for (int i = 0; i < model.size(); ++i) gradients.add_to(engine, i);
      EXPECT_FALSE(engine.end_backward().finite) << kModel[static_cast<std::size_t>(t)].name;
      const StepOutcome outcome = engine.step(request_of(model));
      EXPECT_TRUE(outcome.skipped);
      EXPECT_FALSE(engine.has_gradient());
    }
  }
  engine.synchronize();
  EXPECT_EQ(difference(model, before), "");
  EXPECT_EQ(engine.committed_steps(), 0);
}

TEST(OffloadEngineStepTest, DroppedGradientsLeaveNoTrace) {
  OffloadEngine engine(small_chunk_options(), kModel);
  OffloadModel model(kModel, 11);
  OffloadReference reference(model);
  engine.begin(model.tensors());
  for (int batch = 0; batch < 3; ++batch) {
    OffloadGradients gradients(model, 77, batch);
    for (int i = 0; i < model.size(); ++i) gradients.add_to(engine, i);
    engine.end_backward();
  }
  engine.drop();
  EXPECT_FALSE(engine.has_gradient());
  run_step(engine, model, 1, 1);
  reference.step(1, 1, kStepFactor);
  engine.synchronize();
  EXPECT_EQ(reference.difference(model), "");
}

TEST(OffloadEngineStepTest, GradientsThatWaitOnTheDeviceAreBounded) {
  OffloadOptions options = small_chunk_options();
  options.gradient_room = 1;
  options.lanes.d2h = {0.05, 0};
  OffloadEngine engine(options, kModel);
  OffloadModel model(kModel, 12);
  engine.begin(model.tensors());
  OffloadGradients gradients(model, 1, 0);
  for (int i = 0; i < model.size(); ++i) {
    gradients.add_to(engine, i);
    EXPECT_EQ(gradients.held(), 0) << "after " << i;  // Each is larger than the room.
  }
  engine.end_backward();
  EXPECT_EQ(gradients.held(), 0);
}

TEST(OffloadEngineStepTest, WithoutANormNoExtentIsReadTwice) {
  const ScratchPath drive;
  OffloadOptions options = small_chunk_options({drive.str()});
  options.gate.promised_backwards = 3;
  OffloadEngine engine(options, kModel);
  OffloadModel model(kModel, 13);
  OffloadReference reference(model);
  engine.begin(model.tensors());
  engine.take_stats();
  for (int batch = 0; batch < 3; ++batch) {
    OffloadGradients gradients(model, 1, batch);
    for (int i = 0; i < model.size(); ++i) gradients.add_to(engine, i);
    engine.end_backward(false);
  }
  OffloadRequest request = request_of(model);
  request.norm = false;
  const StepOutcome outcome = engine.step(request);
  EXPECT_TRUE(std::isnan(outcome.grad_norm));
  EXPECT_FALSE(outcome.skipped);
  engine.synchronize();
  const auto stored = static_cast<std::uint64_t>(engine.plan().stored_elems());
  const OffloadStats stats = engine.take_stats();
  EXPECT_EQ(stats.disk_read, stored * (12 + 3 * 2));
  EXPECT_EQ(stats.disk_written, stored * (12 + 3 * 2));
  reference.step(1, 3, kStepFactor);
  EXPECT_EQ(reference.difference(model), "");
}

TEST(OffloadEngineStoreTest, ACrashEndsAtTheLastCommitAndGoesOnWithTheSameBits) {
  const ScratchPath drive;
  OffloadModel expected(kModel, 14);
  OffloadReference reference(expected);
  OffloadModel model(kModel, 14);
  {
    auto engine = std::make_unique<OffloadEngine>(small_chunk_options({drive.str()}), kModel);
    engine->begin(model.tensors());
    for (std::int64_t step = 1; step <= 3; ++step) run_step(*engine, model, step, 1);
    engine->synchronize();
    // Not closed: step 3 is applied but not committed, as after a crash.
  }
  OffloadEngine engine(small_chunk_options({drive.str()}), kModel);
  OffloadModel again(kModel, 15);
  engine.resume(again.tensors());
  EXPECT_EQ(engine.committed_steps(), 2);
  for (std::int64_t step = 1; step <= 3; ++step) reference.step(step, 1, kStepFactor);
  run_step(engine, again, 3, 1);
  engine.synchronize();
  EXPECT_EQ(reference.difference(again), "");
}

TEST(OffloadEngineStoreTest, APinnedGenerationComesBackAndOthersAreNamed) {
  const ScratchPath drive;
  OffloadEngine engine(small_chunk_options({drive.str()}), kModel);
  OffloadModel model(kModel, 16);
  engine.begin(model.tensors());
  run_step(engine, model, 1, 1);
  const std::uint64_t pinned = engine.pin();
  engine.synchronize();
  const OffloadModel at_pin = model;
  run_step(engine, model, 2, 1);
  run_step(engine, model, 3, 2);
  engine.synchronize();
  EXPECT_NE(difference(model, at_pin), "");
  EXPECT_THAT([&] { engine.roll_back(pinned + 1000); },
              ThrowsMessage<InvalidArgument>(
                  AllOf(HasSubstr("no longer exists"), HasSubstr(std::to_string(pinned)))));
  engine.roll_back(pinned);
  engine.resume(model.tensors());
  EXPECT_EQ(difference(model, at_pin), "");
  EXPECT_EQ(engine.committed_steps(), 1);
  OffloadReference reference(OffloadModel(kModel, 16));
  reference.step(1, 1, kStepFactor);
  run_step(engine, model, 2, 2);
  reference.step(2, 2, kStepFactor);
  engine.synchronize();
  EXPECT_EQ(reference.difference(model), "");
}

TEST(OffloadEngineStoreTest, StatesThatAreChangedInPlaceCannotBePinned) {
  OffloadEngine engine(small_chunk_options(), kModel);
  OffloadModel model(kModel, 17);
  engine.begin(model.tensors());
  run_step(engine, model, 1, 1);
  EXPECT_THAT([&] { engine.pin(); },
              ThrowsMessage<InvalidArgument>(AllOf(HasSubstr("in place"), HasSubstr("tier=disk"))));
  run_step(engine, model, 2, 1);  // The refusal changed nothing.
  engine.synchronize();
  OffloadReference reference(OffloadModel(kModel, 17));
  reference.step(1, 1, kStepFactor);
  reference.step(2, 1, kStepFactor);
  EXPECT_EQ(reference.difference(model), "");
  EXPECT_EQ(reference.state_difference(engine), "");
}

TEST(OffloadEngineStoreTest, StatesThatChangeInPlaceKeepTheirCountsWhenTheyAreResumed) {
  OffloadEngine engine(small_chunk_options(), kModel);
  OffloadModel model(kModel, 24), again(kModel, 99);
  OffloadReference reference(model);
  engine.begin(model.tensors());
  for (std::int64_t step = 1; step <= 3; ++step) {
    run_step(engine, model, step, 1);
    reference.step(step, 1, kStepFactor);
  }
  OffloadGradients(model, 4, 0).add_to(engine, 3);
  engine.drop();
  engine.roll_back(engine.store().live().generation);
  engine.resume(again.tensors());  // Its content is overwritten.
  EXPECT_EQ(engine.committed_steps(), 3);
  EXPECT_EQ(engine.tensor_steps(3), 3);
  EXPECT_EQ(reference.difference(again), "");
  EXPECT_THAT([&] { engine.begin(model.tensors()); },
              ThrowsMessage<InvalidArgument>(HasSubstr("which is at step 3")));
  run_step(engine, again, 4, 2);
  reference.step(4, 2, kStepFactor);
  engine.synchronize();
  EXPECT_EQ(reference.difference(again), "");
  EXPECT_EQ(reference.state_difference(engine), "");
}

TEST(OffloadEngineStoreTest, RunStatesComeBackWithTheirCommit) {
  const ScratchPath drive;
  const std::string text = "position 7";
  {
    OffloadEngine engine(small_chunk_options({drive.str()}), kModel);
    OffloadModel model(kModel, 17);
    engine.begin(model.tensors());
    run_step(engine, model, 1, 1);
    engine.set_run_state(std::as_bytes(std::span(text)));
    engine.close();
  }
  OffloadEngine engine(small_chunk_options({drive.str()}), kModel);
  const std::vector<std::byte> found = engine.run_state();
  EXPECT_TRUE(std::ranges::equal(found, std::as_bytes(std::span(text))));
}

TEST(OffloadEngineStoreTest, AStoreOfAnotherModelIsRefusedByItsFirstDifference) {
  const ScratchPath drive;
  OffloadEngine(small_chunk_options({drive.str()}), kModel)
      .begin(OffloadModel(kModel, 1).tensors());
  std::vector<TensorSpec> other = kModel;
  other[3].shape = {32, 128};
  EXPECT_THAT(
      [&] { OffloadEngine engine(small_chunk_options({drive.str()}), other); },
      ThrowsMessage<InvalidArgument>(AllOf(HasSubstr("query [64,64]"), HasSubstr("[32,128]"))));
  other = kModel;
  other.pop_back();
  EXPECT_THAT([&] { OffloadEngine engine(small_chunk_options({drive.str()}), other); },
              ThrowsMessage<InvalidArgument>(HasSubstr("8 tensors, expected 7")));
}

TEST(OffloadEngineStoreTest, ARunThatIsNotTakenOverIsNotOverwritten) {
  const ScratchPath drive;
  {
    OffloadEngine engine(small_chunk_options({drive.str()}), kModel);
    OffloadModel model(kModel, 18);
    engine.begin(model.tensors());
    run_step(engine, model, 1, 1);
    engine.close();
  }
  OffloadEngine engine(small_chunk_options({drive.str()}), kModel);
  OffloadModel model(kModel, 18);
  EXPECT_THAT([&] { engine.begin(model.tensors()); },
              ThrowsMessage<InvalidArgument>(HasSubstr("which is at step 1")));
  EXPECT_THAT([&] { run_step(engine, model, 1, 1); },
              ThrowsMessage<InvalidArgument>(HasSubstr("call resume()")));
}

void copy_states(OffloadEngine& from, OffloadEngine& to) {
  for (int t = 0; t < static_cast<int>(from.size()); ++t) {
    const auto count = static_cast<std::size_t>(from.tensor(t).elems());
    std::vector<float> m(count), v(count), master(count);
    from.read_state(t, {m, v, master});
    to.write_state(t, {m, v, master}, from.tensor_steps(t));
  }
}

TEST(OffloadEngineStoreTest, StatesThatAreWrittenAreThoseOfTheNextStep) {
  OffloadEngine first(small_chunk_options(), kModel), second(small_chunk_options(), kModel);
  OffloadModel model(kModel, 19), other(kModel, 20);
  first.begin(model.tensors());
  second.begin(other.tensors());
  run_step(first, model, 1, 1);
  copy_states(first, second);
  second.set_committed_steps(1);
  second.commit();
  second.resume(other.tensors());
  first.synchronize();
  EXPECT_EQ(difference(other, model), "");
  run_step(first, model, 2, 1);
  run_step(second, other, 2, 1);
  first.synchronize();
  second.synchronize();
  EXPECT_EQ(difference(other, model), "");
}

// Its chunks have masters of 24 bits, and f32 ones where a norm is among the pieces.
TEST(OffloadEngineStoreTest, RoundedStatesThatAreWrittenAreThoseOfTheNextStep) {
  OffloadOptions options = small_chunk_options();
  options.state_codec = StateCodec::k8Bit;
  OffloadEngine first(options, kModel), second(options, kModel);
  OffloadModel model(kModel, 23), other(kModel, 24);
  first.begin(model.tensors());
  second.begin(other.tensors());
  for (std::int64_t step = 1; step <= 3; ++step) run_step(first, model, step, 1);
  copy_states(first, second);
  EXPECT_EQ(state_difference(second, first), "");
  second.set_committed_steps(3);
  second.commit();
  second.resume(other.tensors());
  first.synchronize();
  EXPECT_EQ(difference(other, model), "");
  run_step(first, model, 4, 1);
  run_step(second, other, 4, 1);
  EXPECT_EQ(state_difference(second, first), "");
  EXPECT_EQ(difference(other, model), "");
}

TEST(OffloadEngineStoreTest, AStateIsNotWrittenWhileGradientsAreGathered) {
  OffloadEngine engine(small_chunk_options(), kModel);
  OffloadModel model(kModel, 22);
  engine.begin(model.tensors());
  OffloadGradients gradients(model, 1, 0);
  gradients.add_to(engine, 0);
  const auto count = static_cast<std::size_t>(kModel[0].elems());
  std::vector<float> m(count), v(count), master(count);
  EXPECT_THAT(
      [&] {
        engine.write_state(0, {m, v, master}, 0);
      },
      ThrowsMessage<InvalidArgument>(HasSubstr("while gradients are gathered")));
  EXPECT_FALSE(engine.step(request_of(model)).skipped);
  engine.close();
  EXPECT_EQ(engine.store().live().step, 1U);
}

}  // namespace
}  // namespace sluiceway::test
