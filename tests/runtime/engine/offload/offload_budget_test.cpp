// Memory that the offload engine takes on each tier, and requests that it rejects before taking
// any.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <string>
#include <vector>

#include "kernels/base/error.h"
#include "runtime/engine/offload/offload_engine.h"
#include "tests/support/io_back_ends.h"
#include "tests/support/offload_reference.h"

namespace sluiceway::test {
namespace {

using testing::AllOf;
using testing::HasSubstr;
using testing::ThrowsMessage;

const std::vector<TensorSpec> kModel = mixed_specs();

TEST(OffloadBudgetTest, APinnedBudgetBelowTwoChunksIsRefusedWithBothSizes) {
  OffloadOptions options = small_chunk_options();
  options.lanes.limits[static_cast<std::size_t>(Tier::kPinned)] = 100000;
  EXPECT_THAT([&] { OffloadEngine engine(options, kModel); },
              ThrowsMessage<OutOfMemory>(AllOf(HasSubstr("100000"), HasSubstr("budget.pinned"))));
}

TEST(OffloadBudgetTest, ARingIsWholeHugePagesThatTheBudgetHasRoomFor) {
  OffloadOptions options = small_chunk_options();
  std::uint64_t& limit = options.lanes.limits[static_cast<std::size_t>(Tier::kPinned)];
  limit = std::uint64_t{1} << 20;
  EXPECT_THAT([&] { OffloadEngine engine(options, kModel); },
              ThrowsMessage<OutOfMemory>(HasSubstr("chunks on their way")));
  limit = std::uint64_t{3} << 20;
  OffloadEngine engine(options, kModel);
  EXPECT_LE(engine.budget().peak(Tier::kPinned), limit);
}

TEST(OffloadBudgetTest, MoreMicroBatchesThanTheRingHasRoomForAreRefusedBeforeOneIsTaken) {
  const ScratchPath drive;
  const std::vector<TensorSpec> tensors{{"weight", {64, 2048}, DType::kF32}};
  OffloadOptions options = small_chunk_options({drive.str()});
  options.gradient = DType::kF32;
  options.chunk_elems = 64 * 2048;
  options.lanes.limits[static_cast<std::size_t>(Tier::kPinned)] = std::uint64_t{4} << 20;
  OffloadEngine engine(options, tensors);  // 2 MiB for a chunk with one gradient.
  OffloadModel model(tensors, 22);
  engine.begin(model.tensors());
  for (int batch = 0; batch < 5; ++batch) {
    OffloadGradients(model, 1, batch).add_to(engine, 0);
    engine.end_backward();
  }
  EXPECT_THAT([&] { OffloadGradients(model, 1, 5).add_to(engine, 0); },
              ThrowsMessage<OutOfMemory>(AllOf(HasSubstr("6 backwards"), HasSubstr("4.50 MiB"))));
}

TEST(OffloadBudgetTest, WhatIsPinnedIsTheRingAndTheBuffersOfSmallTensors) {
  OffloadEngine engine(small_chunk_options(), kModel);
  OffloadModel model(kModel, 21);
  engine.begin(model.tensors());
  const std::uint64_t before = engine.budget().peak(Tier::kPinned);
  for (std::int64_t step = 1; step <= 3; ++step) run_step(engine, model, step, 2);
  engine.synchronize();
  EXPECT_EQ(engine.budget().peak(Tier::kPinned), before);
}

// Host bytes of an engine without drives.
std::uint64_t host_bytes(UpdatePolicy policy, int promised) {
  OffloadOptions options = small_chunk_options();
  options.policy = policy;
  options.gate.promised_backwards = promised;
  OffloadEngine engine(options, kModel);
  return engine.budget().used(Tier::kHost);
}

TEST(OffloadBudgetTest, HostMemoryHoldsStatesOnceAndAGradientOfEachBackward) {
  const OffloadEngine engine(small_chunk_options(), kModel);
  const auto elems = static_cast<std::uint64_t>(engine.plan().stored_elems());
  const std::uint64_t one = host_bytes(UpdatePolicy::kSpill, 1);
  const std::uint64_t fixed = std::uint64_t{4} << 20;  // Run states, tables, the catalogue.
  EXPECT_GE(one, (12 + 2) * elems);
  EXPECT_LE(one, (12 + 2) * elems + fixed);
  EXPECT_EQ(host_bytes(UpdatePolicy::kSpill, 4), one + 3 * 2 * elems);
  EXPECT_GE(host_bytes(UpdatePolicy::kSpeculative, 1), (24 + 2) * elems);  // Can be taken back.
}

TEST(OffloadBudgetTest, TheRingOfStatesInHostMemoryHoldsNoneOfThem) {
  const std::vector<TensorSpec> tensors{{"weight", {64, 2048}, DType::kBF16}};
  OffloadOptions options = small_chunk_options();
  options.chunk_elems = 64 * 2048;  // 1.5 MiB of states, 256 KiB of gradient.
  options.lanes.limits[static_cast<std::size_t>(Tier::kPinned)] = std::uint64_t{2} << 20;
  OffloadEngine engine(options, tensors);
  OffloadModel model(tensors, 23);
  OffloadReference reference(model);
  engine.begin(model.tensors());
  run_step(engine, model, 1, 9);  // More extents than the store was made with.
  engine.synchronize();
  reference.step(1, 9, kStepFactor);
  EXPECT_EQ(reference.difference(model), "");
  EXPECT_LE(engine.budget().peak(Tier::kPinned), std::uint64_t{2} << 20);
}

// The only chunk needs room for its decompressed gradient and for its new weights at once.
TEST(OffloadBudgetTest, TheRingOfStatesInHostMemoryHasRoomForAnUpdateFromACore) {
  const std::vector<TensorSpec> tensors{{"weight", {1024, 1024}, DType::kBF16, true}};
  OffloadOptions options = small_chunk_options();
  options.chunk_elems = 1024 * 1024;
  options.cores.codec.name = "block_random";
  options.cores.spill = CoreSpill::kCore;
  std::uint64_t& limit = options.lanes.limits[static_cast<std::size_t>(Tier::kPinned)];
  limit = std::uint64_t{4} << 20;  // Less than both and the core that arrives.
  EXPECT_THAT([&] { OffloadEngine engine(options, tensors); },
              ThrowsMessage<OutOfMemory>(HasSubstr("budget.pinned")));
  limit = std::uint64_t{6} << 20;
  OffloadEngine engine(options, tensors);
  OffloadModel model(tensors, 25);
  const OffloadModel before = model;
  engine.begin(model.tensors());
  run_step(engine, model, 1, 2);
  engine.synchronize();
  EXPECT_NE(difference(model, before), "");
}

TEST(OffloadBudgetTest, ADiskBudgetBelowTheStoreIsRefusedAndNoFileIsLeft) {
  const ScratchPath drive;
  OffloadOptions options = small_chunk_options({drive.str()});
  options.lanes.limits[static_cast<std::size_t>(Tier::kDisk)] = 100000;
  EXPECT_THAT([&] { OffloadEngine engine(options, kModel); },
              ThrowsMessage<OutOfMemory>(AllOf(HasSubstr("100000"), HasSubstr("the store"))));
  EXPECT_FALSE(std::filesystem::exists(drive.str()));
}

TEST(OffloadBudgetTest, GradientsOfAnotherTypeThanTheModelsAreRefused) {
  OffloadOptions options = small_chunk_options();
  options.gradient = DType::kF16;
  EXPECT_THAT([&] { OffloadEngine engine(options, kModel); },
              ThrowsMessage<InvalidArgument>(HasSubstr("set gradients=bf16")));
}

}  // namespace
}  // namespace sluiceway::test
