// WeightRing on CUDA device 0: the computing stream reads late, and its data are still there.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <optional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "runtime/device/link_copy.h"
#include "runtime/engine/stream/weight_ring.h"
#include "runtime/memory/buffer.h"
#include "tests/support/memory_source.h"
#include "tests/support/ring_forward.h"
#include "tests/support/ring_model.h"
#include "tests/support/side_streams.h"
#include "tests/support/stream_work.h"

namespace sluiceway::test {
namespace {

constexpr DeviceId kCuda0 = DeviceId::cuda(0);
constexpr int kUses = 7, kPasses = 6, kEvaluation = 3, kHeld = 2;

struct RingCase {
  std::string name;
  RingDepth depth;
  int directions = 1;
  int copy_lanes = 1;
  std::uint64_t resident_room = 0;
  NoiseFamily family = NoiseFamily::kRademacher;
  LinkCopy::Config link = {};
  bool is_read = false;  // All but one weight, from a source.
  int side_streams = 0;  // The sides of a pair are read on this many streams beside the model's.
};

class CudaRingTest : public testing::TestWithParam<RingCase> {
 protected:
  static ZoRingOptions options() {
    ZoRingOptions all(kCuda0);
    all.lanes.limits.fill(Budget::kUnlimited);
    all.lanes.h2d = GetParam().link;
    all.depth = GetParam().depth;
    all.copy_lanes = GetParam().copy_lanes;
    all.resident_room = GetParam().resident_room;
    all.family = GetParam().family;
    return all;
  }
};

// A use as the computing stream read it, copied by that stream into page-locked memory.
struct Look {
  int pass, use, direction;
  Side side;
  std::optional<StepNoise> noise;
  ZoUpdates updates;
  const std::byte* seen;
};

// Allocates page-locked memory for every look of a run. Page-locking may wait for the device, so it
// is all done before the device is held.
Buffer memory_for_looks(Budget& budget, const RingModel& model, int directions) {
  std::size_t bytes = 0;
  for (const StreamedWeight& use : model.uses) bytes += use.bytes();
  return {budget, Tier::kPinned, kCuda0, bytes * kPasses * 2 * static_cast<std::size_t>(directions),
          "looks"};
}

TEST_P(CudaRingTest, EveryReadEqualsTheOracleThoughTheDeviceIsLate) {
  RingModel model(20261123);
  model.add_random(kUses - 1);
  model.tie(0);
  for (int use = 0; use < kUses && GetParam().is_read; ++use) {
    if (use != 1) model.move_to_source(use);
  }
  MemorySource source(model.sourced(), {});
  Budget budget = Budget::unlimited();
  LinkCopy out(kCuda0, LinkDirection::kDeviceToHost, {});
  const Buffer memory = memory_for_looks(budget, model, GetParam().directions);
  std::byte* free_memory = memory.data();
  std::vector<Look> looks;
  {
    Stream compute = Stream::owned(kCuda0, {"compute"});
    StreamRef ref = StreamRef::host();
    compute.enqueue([&](StreamRef stream) { ref = stream; });
    Gate gate(kCuda0);
    std::jthread opener;
    SideStreams streams(ref, GetParam().side_streams);
    ZoRingOptions given = options();
    given.source = &source;
    ZoRing ring(given, model.uses);
    ZoUpdates updates;
    const auto look = [&](int pass, int use, int direction, Side side,
                          const std::optional<StepNoise>& noise) {
      const StreamRef stream = streams.at(use + static_cast<int>(side));
      const void* const from = ring.acquire(use, direction, side, stream);
      const std::size_t bytes = model.uses[static_cast<std::size_t>(use)].bytes();
      std::byte* const to = std::exchange(free_memory, free_memory + bytes);
      looks.push_back({pass, use, direction, side, noise, updates, to});
      const DeviceGuard guard(kCuda0);
      out.copy(to, from, bytes, stream);
    };
    for (int pass = 0; pass < kPasses; ++pass) {
      std::vector<StepNoise> noises;
      for (int d = 0; d < GetParam().directions && pass != kEvaluation; ++d) {
        noises.push_back(
            {5, static_cast<std::uint64_t>(pass), static_cast<std::uint32_t>(d), 1e-2F});
      }
      // Enqueues as much of two passes as the ring allows before the device does any of it.
      if (pass == kHeld) {
        gate.hold(compute);
        opener = std::jthread([&gate] {
          sleep_ms(30);
          gate.open();
        });
      }
      noises.empty() ? ring.begin_evaluation() : ring.begin_step(noises);
      for (const std::vector<int>& module : model.modules()) {
        for (int d = 0; d < std::max(1, static_cast<int>(noises.size())); ++d) {
          std::optional<StepNoise> noise;
          if (!noises.empty()) noise = noises[static_cast<std::size_t>(d)];
          streams.fork();
          for (const int use : module) {
            for (const Side side : {Side::kPlus, Side::kMinus}) look(pass, use, d, side, noise);
          }
          streams.join();
          for (const int use : module) ring.release(use, d, ref);
        }
      }
      if (noises.empty()) {
        ring.finish();
      } else {
        updates.gamma = {1.0F, 0.999F};
        for (const StepNoise& noise : noises) updates.records.push_back({noise, {1e-2F, -3e-3F}});
        ring.commit(updates);
      }
    }
    compute.synchronize();
    EXPECT_EQ(ring.take_use().d2h_bytes, 0U);
  }
  for (const Look& look : looks) {
    const std::vector<std::byte> expected =
        model.expected(look.use, look.side, look.noise, look.updates, GetParam().family);
    EXPECT_EQ(std::memcmp(look.seen, expected.data(), expected.size()), 0)
        << "pass " << look.pass << ", use " << look.use << ", direction " << look.direction
        << (look.side == Side::kPlus ? "+" : "-");
  }
}

INSTANTIATE_TEST_SUITE_P(
    Cuda, CudaRingTest,
    testing::Values(
        RingCase{.name = "two", .depth = {2, 2}}, RingCase{.name = "one", .depth = {1, 1}},
        RingCase{.name = "directions", .depth = {2, 2}, .directions = 3},
        RingCase{.name = "directions_one",
                 .depth = {1, 1},
                 .directions = 3,
                 .copy_lanes = 2,
                 .resident_room = 6000},
        RingCase{.name = "eight", .depth = {8, 8}, .copy_lanes = 4},
        RingCase{.name = "resident", .depth = {2, 2}, .resident_room = 6000},
        RingCase{
            .name = "gaussian", .depth = {2, 2}, .copy_lanes = 2, .family = NoiseFamily::kGaussian},
        RingCase{.name = "read", .depth = {2, 2, 2}, .is_read = true},
        RingCase{.name = "read_one",
                 .depth = {1, 1, 1},
                 .directions = 2,
                 .resident_room = 6000,
                 .is_read = true},
        RingCase{.name = "slow", .depth = {2, 2}, .link = {.gbps = 0.05}},
        RingCase{.name = "streams", .depth = {2, 2}, .side_streams = 2}),
    [](const auto& param) { return param.param.name; });

}  // namespace
}  // namespace sluiceway::test
