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
  const std::vector<TensorSpec> tensors{{"weight", {64, 2048}, DType::kF32}};
  OffloadOptions options = small_chunk_options();
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
