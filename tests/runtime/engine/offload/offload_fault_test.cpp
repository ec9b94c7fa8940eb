// The offload engine on drives that fail, fill up, lie about a flush or lose their power: a step is
// whole or never was, and what goes on from it has the bits of a run that nothing happened to.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cerrno>
#include <cstdlib>
#include <memory>
#include <string>
#include <vector>

#include "kernels/base/error.h"
#include "runtime/engine/offload/offload_engine.h"
#include "tests/support/fault_io.h"
#include "tests/support/offload_reference.h"
#include "tests/support/power_cut_io.h"

namespace sluiceway::test {
namespace {

using testing::AllOf;
using testing::HasSubstr;
using testing::ThrowsMessage;

const std::vector<TensorSpec> kModel{{"embedding", {50, 123}, DType::kBF16},
                                     {"norm", {64}, DType::kF32},
                                     {"query", {64, 64}, DType::kBF16},
                                     {"head", {7, 301}, DType::kBF16}};
constexpr std::int64_t kSteps = 4;
constexpr int kBatches = 2;

// A drive that outlives the engines that use it, and fails as told.
class FailingDrive {
 public:
  OffloadOptions options(PowerCutIo::Options cut = {}) {
    OffloadOptions options = small_chunk_options();
    options.gate.promised_backwards = promised;
    options.store.opener = [this, cut](Budget& budget, const Contents& contents,
                                       std::span<std::byte>) {
      const Layout layout = new_layout(contents, {1});
      const bool is_new = medium_ == nullptr;
      if (is_new) medium_ = std::make_shared<PowerCutIo::Medium>(layout.drives[0].bytes);
      auto io = std::make_unique<PowerCutIo>(medium_, is_new ? PowerCutIo::Options() : cut);
      power = io.get();
      auto around = std::make_unique<FaultIo>(std::move(io));
      faults = around.get();
      Drive::Options patient;
      patient.first_pause = std::chrono::milliseconds(0);
      patient.report = [](const std::string&) {};
      ChunkStore::Drives drives;
      drives.push_back(std::make_unique<Drive>(std::move(around), patient));
      return is_new ? ChunkStore::create(budget, std::move(drives), layout)
                    : ChunkStore::open(budget, std::move(drives));
    };
    return options;
  }

  PowerCutIo::Medium& bytes() { return *medium_; }
  PowerCutIo* power = nullptr;  // Of the engine that was made last.
  FaultIo* faults = nullptr;
  int promised = kBatches;

 private:
  std::shared_ptr<PowerCutIo::Medium> medium_;
};

// Steps from where the engine is to the last one; whatever it was resumed from.
void run_to_the_end(OffloadEngine& engine, OffloadModel& model) {
  while (engine.committed_steps() < kSteps) {
    run_step(engine, model, engine.committed_steps() + 1, kBatches);
  }
  engine.close();
}

class OffloadFaultTest : public testing::Test {
 protected:
  OffloadFaultTest() : reference(OffloadModel(kModel, 3)) {
    for (std::int64_t step = 1; step <= kSteps; ++step) {
      reference.step(step, kBatches, kStepFactor);
    }
    OffloadEngine engine(drive.options(), kModel);
    engine.begin(model.tensors());
    run_step(engine, model, 1, kBatches);
    engine.close();
  }

  // What another process finds.
  void expect_resumes_at(std::int64_t least, std::int64_t most) {
    OffloadModel again(kModel, 4);
    OffloadEngine engine(drive.options(), kModel);
    engine.resume(again.tensors());
    EXPECT_GE(engine.committed_steps(), least);
    EXPECT_LE(engine.committed_steps(), most);
    run_to_the_end(engine, again);
    EXPECT_EQ(reference.difference(again), "");
    EXPECT_EQ(reference.state_difference(engine), "");
  }

  FailingDrive drive;
  OffloadModel model{kModel, 3};
  OffloadReference reference;
};

TEST_F(OffloadFaultTest, AReadThatFailsEndsTheRunAtTheLastStep) {
  {
    OffloadEngine engine(drive.options(), kModel);
    engine.resume(model.tensors());
    drive.faults->fail(IoKind::kRead, FaultIo::kAlways, EIO);
    EXPECT_THAT(
        [&] {
          run_step(engine, model, 2, kBatches);
          engine.synchronize();
        },
        ThrowsMessage<IoError>(AllOf(HasSubstr("fetch"), HasSubstr("chunk"))));
    EXPECT_THROW(engine.synchronize(), IoError);  // Final.
    engine.finish();
  }
  expect_resumes_at(1, 1);
}

TEST_F(OffloadFaultTest, AWriteThatFailsGoesElsewhereAndTheRunGoesOn) {
  OffloadEngine engine(drive.options(), kModel);
  engine.resume(model.tensors());
  const std::uint64_t done = drive.faults->submitted(IoKind::kWrite);
  drive.faults->fail(IoKind::kWrite, {done + 2, 1}, EIO);
  drive.faults->fail(IoKind::kWrite, {done + 12, 1}, EIO);
  run_to_the_end(engine, model);
  EXPECT_EQ(reference.difference(model), "");
  EXPECT_GE(engine.store().relocated(), 2U);
}

TEST_F(OffloadFaultTest, AFullDriveEndsTheRunAtTheLastStep) {
  {
    OffloadEngine engine(drive.options(), kModel);
    engine.resume(model.tensors());
    drive.faults->fail(IoKind::kWrite, FaultIo::kAlways, ENOSPC);
    EXPECT_THROW(
        {
          run_step(engine, model, 2, kBatches);
          engine.synchronize();
        },
        Error);
    engine.finish();
  }
  expect_resumes_at(1, 1);
}

TEST_F(OffloadFaultTest, AFlushThatFailsCommitsNothing) {
  {
    OffloadEngine engine(drive.options(), kModel);
    engine.resume(model.tensors());
    run_step(engine, model, 2, kBatches);
    drive.faults->fail_flush(FaultIo::kAlways, EIO);
    EXPECT_THROW(engine.commit(), IoError);
    EXPECT_THROW(engine.commit(), Error);
    engine.finish();
  }
  expect_resumes_at(1, 2);
}

TEST_F(OffloadFaultTest, ABitThatFlippedAtRestIsFoundByTheStepThatReadsIt) {
  OffloadEngine engine(drive.options(), kModel);
  engine.resume(model.tensors());
  engine.close();
  const Region& region = engine.store().layout().regions[StateStream::kStateRegion];
  EXPECT_THAT(
      [&] {
        FailingDrive& damaged = drive;
        for (const auto& slot : region.base) damaged.bytes()[slot[0] + 5] ^= std::byte{4};
        OffloadEngine again(damaged.options(), kModel);
        OffloadModel other(kModel, 5);
        again.resume(other.tensors());
      },
      ThrowsMessage<Corrupt>(AllOf(HasSubstr("chunk 0"), HasSubstr("checksum"))));
}

TEST_F(OffloadFaultTest, MoreMicroBatchesThanTheDriveHasRoomForAreRefusedAndNothingIsLost) {
  drive.promised = kBatches;
  OffloadEngine engine(drive.options(), kModel);
  engine.resume(model.tensors());
  for (int batch = 0; batch < kBatches; ++batch) {
    OffloadGradients gradients(model, 2, batch);
    for (int t = 0; t < model.size(); ++t) gradients.add_to(engine, t);
    engine.end_backward();
  }
  drive.faults->fail_grow(ENOSPC);
  OffloadGradients one_more(model, 2, kBatches);
  EXPECT_THROW(one_more.add_to(engine, 0), IoError);
  EXPECT_FALSE(engine.step(request_of(model)).skipped);  // With the gradients that there are.
  run_to_the_end(engine, model);
  EXPECT_EQ(reference.difference(model), "");
}

TEST_F(OffloadFaultTest, APowerCutAtAnyMomentEndsAtAWholeStepWithTheSameBits) {
  const PowerCutIo::Medium start = drive.bytes();
  std::uint64_t operations = 0;
  {
    OffloadEngine engine(drive.options(), kModel);
    engine.resume(model.tensors());
    run_to_the_end(engine, model);
    operations = drive.power->operations();
  }
  const char* const every = std::getenv("SLUICEWAY_POWER_CUTS");
  const std::uint64_t stride = every == nullptr ? std::max<std::uint64_t>(1, operations / 40) : 1;
  for (std::uint64_t dies_at = 1; dies_at <= operations; dies_at += stride) {
    drive.bytes() = start;
    OffloadModel cut(kModel, 6);
    try {
      OffloadEngine engine(drive.options({.seed = dies_at, .dies_at = dies_at}), kModel);
      engine.resume(cut.tensors());
      run_to_the_end(engine, cut);
    } catch (const Error&) {
    }
    SCOPED_TRACE(dies_at);
    expect_resumes_at(1, kSteps);
    if (HasFailure()) return;
  }
}

}  // namespace
}  // namespace sluiceway::test
