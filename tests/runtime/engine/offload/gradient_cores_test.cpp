// Gradients that cross as cores have the bits of a run that is given P S Q^T whole: for any number
// of micro-batches, any link, and after a redraw, a skipped step and a crash.
#include "runtime/engine/offload/gradient_cores.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <limits>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "kernels/base/error.h"
#include "kernels/philox.h"
#include "runtime/engine/offload/offload_engine.h"
#include "runtime/engine/offload/offload_footprint.h"
#include "runtime/memory/budget.h"
#include "tests/support/io_back_ends.h"
#include "tests/support/offload_reference.h"

namespace sluiceway::test {
namespace {

using testing::HasSubstr;
using testing::ThrowsMessage;

// In chunks of 4096 elements: "embedding" and "query" have several, "key" has a part of one, and
// "norm" and "tiny" share one.
std::vector<TensorSpec> model_specs(bool compressed) {
  std::vector<TensorSpec> specs{{"embedding", {60, 123}, DType::kBF16},
                                {"query", {100, 123}, DType::kBF16, compressed},
                                {"norm", {64}, DType::kF32},
                                {"key", {64, 48}, DType::kF32, compressed},
                                {"tiny", {3, 2}, DType::kBF16, compressed}};
  return specs;
}

struct Case {
  std::string codec = "block_random";
  WireFormat wire = WireFormat::kBF16;
  int batches = 1;
  std::int64_t redraw = 0;
  CoreSpill spill = CoreSpill::kGradient;
  UpdatePolicy policy = UpdatePolicy::kSpill;
};

class GradientCoresTest : public testing::TestWithParam<Case> {
 protected:
  static CoreOptions cores() {
    CoreOptions cores;
    cores.codec.name = GetParam().codec;
    cores.codec.ratio = 0.5;
    cores.codec.block = 8;
    cores.codec.seed = 5;
    cores.wire = GetParam().wire;
    cores.redraw = GetParam().redraw;
    cores.spill = GetParam().spill;
    return cores;
  }

  static OffloadOptions options(int promised = 0, const std::string& drive = "") {
    OffloadOptions made = small_chunk_options();
    made.gate.promised_backwards = promised;
    made.cores = cores();
    made.policy = GetParam().policy;
    made.park_bytes = Budget::kUnlimited;
    if (!drive.empty()) made.store.drives = {drive};
    return made;
  }

  // Makes the engine's codec again, for every draw.
  static std::vector<std::byte> whole(const OffloadModel& model, int tensor, std::int64_t step) {
    const TensorSpec& spec = model.spec(tensor);
    Budget budget = Budget::unlimited();
    CodecConfig config = cores().codec;
    const std::int64_t draw = GetParam().redraw > 0 ? (step - 1) / GetParam().redraw : 0;
    config.seed += static_cast<std::uint64_t>(draw) * 0x9E3779B97F4A7C15U;
    const auto codec = make_codec(config, spec.rows(), spec.cols(), stable_hash(spec.name),
                                  DeviceId::host(), budget);
    const CoreShape shape = codec->core();
    std::vector<float> core(static_cast<std::size_t>(shape.elems()));
    std::vector<float> scratch(std::max(codec->scratch_elems(), codec->range_scratch_elems()));
    const MatrixView<float> s(core.data(), shape.rows, shape.cols);
    for (int batch = 0; batch < GetParam().batches; ++batch) {
      std::vector<std::byte> g = OffloadGradients(model, step, batch).bytes(tensor);
      codec->compress({g.data(), spec.rows(), spec.cols(), spec.cols(), spec.dtype},
                      batch == 0 ? 0.0F : 1.0F, s, scratch, StreamRef::host());
    }
    std::vector<std::byte> wire(wire_bytes(GetParam().wire, shape.elems()));
    cpu::pack(GetParam().wire, core, wire);
    cpu::unpack(GetParam().wire, wire, core);
    std::vector<std::byte> out(static_cast<std::size_t>(spec.elems()) * sizeof(bf16));
    codec->decompress_range({core.data(), shape.rows, shape.cols, shape.cols, DType::kF32}, 0, out,
                            DType::kBF16, scratch);
    return out;
  }

  // Takes a step of the reference run.
  static StepOutcome reference_step(OffloadEngine& engine, OffloadModel& model, std::int64_t step) {
    const std::vector<TensorSpec> specs = model_specs(true);
    for (int batch = 0; batch < GetParam().batches; ++batch) {
      OffloadGradients gradients(model, step, batch);
      for (int t = model.size(); t-- > 0;) {
        const bool has_core = specs[static_cast<std::size_t>(t)].compressed && t != 4;
        if (!has_core) {
          gradients.add_to(engine, t);
        } else if (batch == 0) {
          auto keep = std::make_shared<std::vector<std::byte>>(whole(model, t, step));
          const std::int64_t elems = model.spec(t).elems();
          engine.add_gradient(t, {keep->data(), 1, elems, elems, DType::kBF16}, keep,
                              StreamRef::host());
        }
      }
      engine.end_backward();
    }
    return engine.step(request_of(model));
  }
};

TEST_P(GradientCoresTest, TheBitsAreThoseOfTheDecompressedGradientFedWhole) {
  for (const int promised : {0, GetParam().batches}) {
    OffloadEngine plain(options(), model_specs(false)),
        compressed(options(promised), model_specs(true));
    OffloadModel expected(model_specs(false), 3), model(model_specs(true), 3);
    plain.begin(expected.tensors());
    compressed.begin(model.tensors());
    for (std::int64_t step = 1; step <= 4; ++step) {
      const StepOutcome wanted = reference_step(plain, expected, step);
      const StepOutcome found = run_step(compressed, model, step, GetParam().batches);
      EXPECT_FALSE(found.skipped);
      EXPECT_NEAR(found.grad_norm, wanted.grad_norm, 1e-6 * wanted.grad_norm);
      plain.synchronize();
      compressed.synchronize();
      ASSERT_EQ(difference(model, expected), "") << "after step " << step;
    }
  }
}

TEST_P(GradientCoresTest, AResumedRunDrawsTheSameProjectors) {
  const ScratchPath drive;
  OffloadModel expected(model_specs(true), 4), model(model_specs(true), 4);
  OffloadEngine whole_run(options(), model_specs(true));
  whole_run.begin(expected.tensors());
  for (std::int64_t step = 1; step <= 4; ++step) {
    run_step(whole_run, expected, step, GetParam().batches);
  }
  whole_run.synchronize();
  {
    OffloadEngine engine(options(0, drive.str()), model_specs(true));
    engine.begin(model.tensors());
    run_step(engine, model, 1, GetParam().batches);
    run_step(engine, model, 2, GetParam().batches);
    engine.close();
  }
  OffloadEngine engine(options(0, drive.str()), model_specs(true));
  engine.resume(model.tensors());
  for (std::int64_t step = 3; step <= 4; ++step) run_step(engine, model, step, GetParam().batches);
  engine.synchronize();
  EXPECT_EQ(difference(model, expected), "");
}

TEST_P(GradientCoresTest, MicroBatchesCostNeitherLinkNorDrive) {
  const ScratchPath drive;
  OffloadEngine engine(options(GetParam().batches, drive.str()), model_specs(true));
  OffloadModel model(model_specs(true), 5);
  engine.begin(model.tensors());
  engine.take_stats();
  OffloadRequest request = request_of(model);
  engine.expect(request.hyper, request.factor);
  for (int batch = 0; batch < GetParam().batches; ++batch) {
    OffloadGradients gradients(model, 1, batch);
    for (const int t : {1, 3}) gradients.add_to(engine, t);
    engine.end_backward(false);
  }
  request.norm = false;
  engine.step(request);
  engine.synchronize();
  std::uint64_t core_bytes = 0, stored = 0;
  for (const int t : {1, 3}) {
    const TensorSpec& spec = model.spec(t);
    Budget budget = Budget::unlimited();
    const auto codec =
        make_codec(cores().codec, spec.rows(), spec.cols(), 0, DeviceId::host(), budget);
    core_bytes += wire_bytes(GetParam().wire, codec->core().elems());
    for (const int chunk : engine.plan().of_tensor(t)) {
      stored += static_cast<std::uint64_t>(
          engine.plan().chunks()[static_cast<std::size_t>(chunk)].stored_elems);
    }
  }
  const bool early = GetParam().policy == UpdatePolicy::kSpeculative;
  const bool in_core = early || GetParam().spill == CoreSpill::kCore;
  const OffloadStats stats = engine.take_stats();
  EXPECT_EQ(stats.use.d2h_bytes, (in_core && !early ? 2 : 1) * core_bytes);
  EXPECT_EQ(stats.disk_written, stored * (in_core ? 12 : 14));
  EXPECT_EQ(stats.disk_read, stored * (in_core ? 12 : 14));
}

TEST_P(GradientCoresTest, WhatIsPredictedOfEachTierIsWhatTheEngineTakes) {
  OffloadEngine engine(options(GetParam().batches), model_specs(true)),
      plain(options(GetParam().batches), model_specs(false));
  const std::vector<TensorSpec> specs = model_specs(true);
  const OffloadFootprint found =
      offload_footprint(specs, {.chunk_elems = 2 * ChunkPlan::kStoredAlignment,
                                .micro_batches = GetParam().batches,
                                .slots = state_slots(GetParam().policy, true),
                                .cores = cores(),
                                .policy = GetParam().policy});
  const auto more = [&](Tier tier) {
    return engine.budget().peak(tier) - plain.budget().peak(tier);
  };
  EXPECT_EQ(found.cores.weights, 2);
  EXPECT_EQ(found.cores.elems, 100 * 123 + 64 * 48);
  EXPECT_EQ(found.cores.device_bytes, more(Tier::kDevice));
  EXPECT_EQ(found.cores.host_bytes, more(Tier::kHost));
  EXPECT_EQ(found.cores.landing_bytes, more(Tier::kPinned));
  EXPECT_EQ(found.pinned_bytes, engine.budget().peak(Tier::kPinned));
  EXPECT_EQ(found.stored_elems, engine.plan().stored_elems());
  for (const auto& [m, n] : {std::pair{100, 123}, std::pair{3, 5000}}) {
    EXPECT_GT(decompress_seconds(cores().codec, m, n, DType::kBF16), 0);
  }
}

INSTANTIATE_TEST_SUITE_P(
    Codecs, GradientCoresTest,
    testing::Values(Case{}, Case{"block_random", WireFormat::kF32, 3, 2},
                    Case{"sparse_random", WireFormat::kBF16, 3, 0},
                    Case{"block_random", WireFormat::kBF16, 1, 0, CoreSpill::kCore},
                    Case{"sparse_random", WireFormat::kF32, 3, 2, CoreSpill::kCore},
                    Case{"block_random", WireFormat::kBF16, 1, 0, CoreSpill::kGradient,
                         UpdatePolicy::kSpeculative},
                    Case{"sparse_random", WireFormat::kF32, 3, 2, CoreSpill::kCore,
                         UpdatePolicy::kSpeculative}),
    [](const auto& tested) {
      return tested.param.codec + "M" + std::to_string(tested.param.batches) +
             (tested.param.spill == CoreSpill::kCore ? "InCore" : "") +
             (tested.param.policy == UpdatePolicy::kSpill ? "" : "Early");
    });

class CoreSpillTest : public testing::TestWithParam<CoreSpill> {
 protected:
  static OffloadOptions options(CoreSpill spill) {
    OffloadOptions made = small_chunk_options();
    made.cores.codec.name = "block_random";
    made.cores.spill = spill;
    return made;
  }
};

TEST_P(CoreSpillTest, AGradientThatIsNotFiniteSkipsTheStepAndTheNextOneIsClean) {
  OffloadEngine engine(options(GetParam()), model_specs(true)),
      other(options(GetParam()), model_specs(true));
  OffloadModel model(model_specs(true), 6), expected(model_specs(true), 6);
  engine.begin(model.tensors());
  other.begin(expected.tensors());
  OffloadGradients bad(model, 1, 0);
  bad.poison(1, std::numeric_limits<float>::infinity());
  for (int t = model.size(); t-- > 0;) bad.add_to(engine, t);
  EXPECT_FALSE(engine.end_backward().finite);
  EXPECT_TRUE(engine.step(request_of(model)).skipped);
  run_step(engine, model, 1, 1);
  run_step(other, expected, 1, 1);
  engine.synchronize();
  other.synchronize();
  EXPECT_EQ(difference(model, expected), "");
}

// Several weights of two chunks each, through the least ring and two landings.
TEST_P(CoreSpillTest, TheLeastRingGivesTheBitsOfExtentsInAnyOrderOverASlowLink) {
  std::vector<TensorSpec> specs;
  for (const char* const name : {"a", "b", "c", "d", "e"}) {
    specs.push_back({name, {512, 500}, DType::kBF16, true});
  }
  specs.push_back({"whole", {512, 300}, DType::kBF16});
  OffloadOptions plain = options(CoreSpill::kGradient);
  plain.chunk_elems = 64 * ChunkPlan::kStoredAlignment;
  plain.gate.max_norm = 0.5;
  OffloadModel expected(specs, 7);
  OffloadEngine other(plain, specs);
  other.begin(expected.tensors());
  for (std::int64_t step = 1; step <= 2; ++step) run_step(other, expected, step, 2);
  other.synchronize();
  for (const Order order : {Order::kEdf, Order::kFcfs, Order::kPaper, Order::kBarrier}) {
    OffloadOptions tight = plain;
    tight.cores.spill = GetParam();
    tight.lanes.order = order;
    tight.lanes.d2h = tight.lanes.h2d = {0.5, 20};
    tight.lanes.limits[static_cast<std::size_t>(Tier::kPinned)] = std::uint64_t{4600} << 10;
    OffloadModel model(specs, 7);
    OffloadEngine engine(tight, specs);
    engine.begin(model.tensors());
    for (std::int64_t step = 1; step <= 2; ++step) run_step(engine, model, step, 2);
    engine.synchronize();
    EXPECT_EQ(difference(model, expected), "") << to_string(order);
  }
}

TEST_P(CoreSpillTest, DroppedCoresLeaveNoTrace) {
  OffloadEngine engine(options(GetParam()), model_specs(true));
  OffloadModel model(model_specs(true), 8), expected(model_specs(true), 8);
  engine.begin(model.tensors());
  OffloadGradients gradients(model, 5, 0);
  for (int t = 0; t < model.size(); ++t) gradients.add_to(engine, t);
  engine.end_backward();
  engine.drop();
  run_step(engine, model, 1, 1);
  engine.synchronize();
  OffloadEngine other(options(CoreSpill::kGradient), model_specs(true));
  other.begin(expected.tensors());
  run_step(other, expected, 1, 1);
  other.synchronize();
  EXPECT_EQ(difference(model, expected), "");
}

INSTANTIATE_TEST_SUITE_P(Spills, CoreSpillTest,
                         testing::Values(CoreSpill::kGradient, CoreSpill::kCore),
                         [](const auto& tested) {
                           return tested.param == CoreSpill::kCore ? "Core" : "Gradient";
                         });

TEST(GradientCoresErrorTest, ACodecThatLearnsIsRefusedByName) {
  OffloadOptions options = small_chunk_options();
  options.cores.codec.name = "svd";
  EXPECT_THAT([&] { OffloadEngine engine(options, model_specs(true)); },
              ThrowsMessage<InvalidArgument>(HasSubstr("svd does not draw its projectors")));
}

}  // namespace
}  // namespace sluiceway::test
