// An engine with low-rank noise, beside the oracle of its run.
#pragma once

#include <gtest/gtest.h>

#include <cstddef>
#include <cstdint>
#include <optional>
#include <vector>

#include "runtime/engine/zo/zo_engine.h"
#include "tests/support/io_back_ends.h"
#include "tests/support/low_rank_run.h"

namespace sluiceway::test {

inline constexpr float kEps = 1e-2F;
inline constexpr std::uint32_t kGroups = 2;

inline LogShape log_shape(std::uint32_t rank, std::uint32_t period, std::uint32_t directions) {
  const auto family = static_cast<std::uint32_t>(NoiseFamily::kGaussian);
  return {
      .run_seed = 77, .noise = {family, rank, period}, .groups = kGroups, .directions = directions};
}

// An engine's run beside the oracle's.
class Followed {
 public:
  Followed(DeviceId device, const LogShape& shape, bool small = false)
      : run(20261123, shape), stream(Stream::owned(device, {"compute"})), device_(device) {
    stream.enqueue([this](StreamRef ref) { compute = ref; });
    stream.synchronize();
    run.add(5, 35, DType::kF32, 0);
    run.add(0, 7, DType::kF32, 1);
    if (small) return;
    run.add(13, 13 * 37, DType::kBF16, 1);
    run.add(0, 11, DType::kBF16, 0);
    run.add(1, 3, DType::kF32, 0);
    run.add(19, 19, DType::kF32, 1);
    run.tie(0);
  }

  ZoEngineOptions options() const {
    ZoEngineOptions all(device_);
    all.ring.lanes.limits.fill(Budget::kUnlimited);
    all.log_path = path.str();
    all.shape = run.shape;
    all.eps = kEps;
    all.trained = run.trained();
    return all;
  }

  void expect_use(ZoEngine& engine, std::size_t use, std::uint32_t direction, bool is_step) {
    std::optional<StepNoise> with;
    if (is_step) with = run.noise(direction, kEps);
    const int index = static_cast<int>(use), d = static_cast<int>(direction);
    for (const Side side : {Side::kPlus, Side::kMinus}) {
      const void* const found = engine.acquire(index, d, side, compute);
      EXPECT_EQ(bytes_at(found, run.uses[use].bytes()), run.expected(use, side, with))
          << "use " << use << " in step " << run.state.step << ", direction " << direction;
    }
    engine.release(index, d, compute);
  }
  void expect_pass(ZoEngine& engine, bool is_step) {
    for (std::size_t use = 0; use < run.uses.size(); ++use) {
      for (std::uint32_t d = 0; d < (is_step ? run.shape.directions : 1); ++d) {
        expect_use(engine, use, d, is_step);
      }
    }
  }
  void expect_evaluation(ZoEngine& engine) {
    engine.begin_evaluation();
    expect_pass(engine, false);
    engine.finish();
  }
  // Reads like a reader of a weight outside the ring.
  void expect_outside(ZoEngine& engine, std::size_t use, const StepNoise* noise) {
    const StreamedWeight& weight = run.uses[use];
    Budget budget = Budget::unlimited();
    const auto buffer = [&] {
      return Buffer(budget, Tier::kDevice, device_, weight.bytes(), "a copy");
    };
    const Buffer base = buffer(), plus = buffer(), minus = buffer();
    copy_device_bytes(device_, base.data(), weight.host, base.size());
    engine.low_rank(compute).make_alone(stable_hash(weight.name),
                                        {{base.data(), base.size()}, plus.data(), minus.data()},
                                        engine.updates(), noise, compute);
    std::optional<StepNoise> with;
    if (noise != nullptr) with = *noise;
    EXPECT_EQ(bytes_at(plus.data(), plus.size()), run.expected(use, Side::kPlus, with));
    if (noise == nullptr) return;
    EXPECT_EQ(bytes_at(minus.data(), minus.size()), run.expected(use, Side::kMinus, with));
  }

  void commit(ZoEngine& engine) {
    g = run.rng().vector(run.shape.directions);
    rates = {{1e-1, 0.1}, {3e-2 / (1 + run.state.step), 0}};
    engine.commit(g, rates, false);
    run.take_step(g, rates);
  }
  void take_step(ZoEngine& engine) {
    engine.begin_step();
    expect_pass(engine, true);
    commit(engine);
  }

  std::vector<std::byte> bytes_at(const void* data, std::size_t count) const {
    std::vector<std::byte> bytes(count);
    wait_for(compute);
    copy_device_bytes(device_, bytes.data(), data, count);
    return bytes;
  }

  LowRankRun run;
  Stream stream;
  std::vector<float> g;  // From the last commit, like the rates.
  std::vector<StepRate> rates;
  StreamRef compute = StreamRef::host();
  ScratchPath path, other;

 private:
  DeviceId device_;
};

}  // namespace sluiceway::test
