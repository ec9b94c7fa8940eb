// The offload engine on drives that fail, fill up, lie about a flush or lose power: a step is whole
// or absent, and a resumed run has the bits of a run without faults.
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
                                     {"query", {64, 96}, DType::kBF16},
                                     {"head", {7, 301}, DType::kBF16}};
constexpr std::int64_t kSteps = 4;

// When updates run, and where gradients are until then.
struct Way {
  std::string name;
  int batches = 2;
  UpdatePolicy policy = UpdatePolicy::kSpill;
  double max_norm = 0;
  bool compressed = false;  // "query", whose core stays on the device.

  std::vector<TensorSpec> model() const {
    std::vector<TensorSpec> specs = kModel;
    specs[2].compressed = compressed;
    return specs;
  }
  OffloadOptions options() const {
    OffloadOptions options = small_chunk_options();
    options.gate.promised_backwards = batches;
    options.gate.max_norm = max_norm;
    options.policy = policy;
    options.park_bytes = 10000;
    options.cores.codec.name = "block_random";
    options.cores.spill = CoreSpill::kCore;
    return options;
  }
};

// A drive that outlives the engines that use it, and fails on request.
class FailingDrive {
 public:
  OffloadOptions options(const Way& way, PowerCutIo::Options cut = {}) {
    OffloadOptions options = way.options();
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
  PowerCutIo* power = nullptr;  // The drive of the newest engine.
  FaultIo* faults = nullptr;

 private:
  std::shared_ptr<PowerCutIo::Medium> medium_;
};

// Trains from the engine's present step to the last one, wherever it was resumed.
void run_to_the_end(OffloadEngine& engine, OffloadModel& model, int batches) {
  while (engine.committed_steps() < kSteps) {
    run_step(engine, model, engine.committed_steps() + 1, batches);
  }
  engine.close();
}

class OffloadFaultTest : public testing::TestWithParam<Way> {
 protected:
  OffloadFaultTest() {
    expected.begin(expected_model.tensors());
    run_to_the_end(expected, expected_model, batches);
    OffloadEngine engine(drive.options(way), specs);
    engine.begin(model.tensors());
    run_step(engine, model, 1, batches);
    engine.close();
  }

  // Checks what another process finds.
  void expect_resumes_at(std::int64_t least, std::int64_t most) {
    OffloadModel again(specs, 4);
    OffloadEngine engine(drive.options(way), specs);
    engine.resume(again.tensors());
    EXPECT_GE(engine.committed_steps(), least);
    EXPECT_LE(engine.committed_steps(), most);
    run_to_the_end(engine, again, batches);
    EXPECT_EQ(difference(again, expected_model), "");
    EXPECT_EQ(state_difference(engine, expected), "");
  }

  const Way way = GetParam();
  const int batches = way.batches;
  const std::vector<TensorSpec> specs = way.model();
  FailingDrive drive;
  OffloadModel model{specs, 3}, expected_model{specs, 3};
  OffloadEngine expected{way.options(), specs};  // In memory, without faults.
};

INSTANTIATE_TEST_SUITE_P(
    Ways, OffloadFaultTest,
    testing::Values(Way{"Spill"}, Way{"Cores", 2, UpdatePolicy::kSpill, 0.5, true},
                    Way{"Speculative", 1, UpdatePolicy::kSpeculative},
                    Way{"SpeculativeNotClipped", 1, UpdatePolicy::kSpeculative, 1e6, true},
                    Way{"SpeculativeClipped", 1, UpdatePolicy::kSpeculative, 0.5, true},
                    Way{"SpeculativeCores", 2, UpdatePolicy::kSpeculative, 0, true}),
    [](const auto& tested) { return tested.param.name; });

TEST_P(OffloadFaultTest, AReadThatFailsEndsTheRunAtTheLastStep) {
  {
    OffloadEngine engine(drive.options(way), specs);
    engine.resume(model.tensors());
    drive.faults->fail(IoKind::kRead, FaultIo::kAlways, EIO);
    EXPECT_THAT(
        [&] {
          run_step(engine, model, 2, batches);
          engine.synchronize();
        },
        ThrowsMessage<IoError>(AllOf(HasSubstr("fetch"), HasSubstr("chunk"))));
    EXPECT_THROW(engine.synchronize(), IoError);  // The error stays.
    engine.finish();
  }
  expect_resumes_at(1, 1);
}

TEST_P(OffloadFaultTest, AWriteThatFailsGoesElsewhereAndTheRunGoesOn) {
  OffloadEngine engine(drive.options(way), specs);
  engine.resume(model.tensors());
  const std::uint64_t done = drive.faults->submitted(IoKind::kWrite);
  drive.faults->fail(IoKind::kWrite, {done + 2, 1}, EIO);
  drive.faults->fail(IoKind::kWrite, {done + 12, 1}, EIO);
  run_to_the_end(engine, model, batches);
  EXPECT_EQ(difference(model, expected_model), "");
  EXPECT_GE(engine.store().relocated(), 2U);
}

TEST_P(OffloadFaultTest, AFullDriveEndsTheRunAtTheLastStep) {
  {
    OffloadEngine engine(drive.options(way), specs);
    engine.resume(model.tensors());
    drive.faults->fail(IoKind::kWrite, FaultIo::kAlways, ENOSPC);
    EXPECT_THROW(
        {
          run_step(engine, model, 2, batches);
          engine.synchronize();
        },
        Error);
    engine.finish();
  }
  expect_resumes_at(1, 1);
}

TEST_P(OffloadFaultTest, AFlushThatFailsCommitsNothing) {
  {
    OffloadEngine engine(drive.options(way), specs);
    engine.resume(model.tensors());
    run_step(engine, model, 2, batches);
    drive.faults->fail_flush(FaultIo::kAlways, EIO);
    EXPECT_THROW(engine.commit(), IoError);
    EXPECT_THROW(engine.commit(), Error);
    engine.finish();
  }
  expect_resumes_at(1, 2);
}

TEST_P(OffloadFaultTest, ABitThatFlippedAtRestIsFoundByTheStepThatReadsIt) {
  OffloadEngine engine(drive.options(way), specs);
  engine.resume(model.tensors());
  engine.close();
  const Region& region = engine.store().layout().regions[StateStream::kStateRegion];
  EXPECT_THAT(
      [&] {
        FailingDrive& damaged = drive;
        for (const auto& slot : region.base) damaged.bytes()[slot[0] + 5] ^= std::byte{4};
        OffloadEngine again(damaged.options(way), specs);
        OffloadModel other(specs, 5);
        again.resume(other.tensors());
      },
      ThrowsMessage<Corrupt>(AllOf(HasSubstr("chunk 0"), HasSubstr("checksum"))));
}

TEST_P(OffloadFaultTest, MoreMicroBatchesThanTheDriveHasRoomForAreRefusedAndNothingIsLost) {
  OffloadEngine engine(drive.options(way), specs);
  engine.resume(model.tensors());
  engine.expect(request_of(model).hyper, kStepFactor);
  for (int batch = 0; batch < batches; ++batch) {
    OffloadGradients gradients(model, 2, batch);
    for (int t = 0; t < model.size(); ++t) gradients.add_to(engine, t);
    engine.end_backward();
  }
  drive.faults->fail_grow(ENOSPC);
  OffloadGradients one_more(model, 2, batches);
  // A step that promised one backward and keeps no gradient does not accept a second one.
  EXPECT_THROW(one_more.add_to(engine, 0), Error);
  EXPECT_FALSE(engine.step(request_of(model)).skipped);  // With the gradients already there.
  run_to_the_end(engine, model, batches);
  EXPECT_EQ(difference(model, expected_model), "");
}

// A drive that reports a flush without doing it may lose a commit, but never half of one.
TEST_P(OffloadFaultTest, AFlushThatIsALieEndsAtAWholeStepOrIsFound) {
  const PowerCutIo::Medium start = drive.bytes();
  for (std::uint64_t lies_at = 1; lies_at <= 2 * kSteps; ++lies_at) {
    drive.bytes() = start;
    OffloadModel cut(specs, 6);
    {
      OffloadEngine engine(drive.options(way, {.seed = lies_at, .lies_at = lies_at}), specs);
      engine.resume(cut.tensors());
      run_step(engine, cut, 2, batches);
      run_step(engine, cut, 3, batches);
      engine.leave_uncommitted();
      engine.close();
    }
    SCOPED_TRACE(lies_at);
    try {
      expect_resumes_at(1, kSteps);
    } catch (const Corrupt&) {
    }
    if (HasFailure()) return;
  }
}

TEST_P(OffloadFaultTest, APowerCutAtAnyMomentEndsAtAWholeStepWithTheSameBits) {
  const PowerCutIo::Medium start = drive.bytes();
  std::uint64_t operations = 0;
  {
    OffloadEngine engine(drive.options(way), specs);
    engine.resume(model.tensors());
    run_to_the_end(engine, model, batches);
    operations = drive.power->operations();
  }
  const char* const every = std::getenv("SLUICEWAY_POWER_CUTS");
  const std::uint64_t stride = every == nullptr ? std::max<std::uint64_t>(1, operations / 40) : 1;
  for (std::uint64_t dies_at = 1; dies_at <= operations; dies_at += stride) {
    drive.bytes() = start;
    OffloadModel cut(specs, 6);
    try {
      OffloadEngine engine(drive.options(way, {.seed = dies_at, .dies_at = dies_at}), specs);
      engine.resume(cut.tensors());
      run_to_the_end(engine, cut, batches);
    } catch (const Error&) {
    }
    SCOPED_TRACE(dies_at);
    expect_resumes_at(1, kSteps);
    if (HasFailure()) return;
  }
}

}  // namespace
}  // namespace sluiceway::test
