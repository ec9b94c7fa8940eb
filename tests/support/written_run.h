// Passes through a WeightRing that writes steps into its weights; the oracle's weights are a copy
// that materialise() updates step by step.
#pragma once

#include <gtest/gtest.h>

#include <cstring>
#include <functional>
#include <map>
#include <memory>
#include <vector>

#include "runtime/engine/stream/weight_places.h"
#include "runtime/engine/zo/host_masters.h"
#include "runtime/engine/zo/log_theta.h"
#include "tests/support/ring_forward.h"
#include "tests/support/ring_model.h"

namespace sluiceway::test {

class WrittenRun {
 public:
  using Make = std::function<void(RingModel&)>;  // Called twice, with the same effect.

  WrittenRun(ZoRingOptions given, std::uint64_t seed, const Make& make)
      : model(seed), oracle(seed), masters({7, given.family, 0, 2}) {
    make(model);
    make(oracle);
    for (std::size_t i = 0; i < model.uses.size(); ++i) {
      if (first_uses(model.uses)[i] == static_cast<int>(i)) first.push_back(i);
    }
    std::vector<StreamedWeight> held;
    for (const std::size_t i : first) held.push_back(model.uses[i]);
    masters.hold(held);
    given.masters = &masters;
    forward = std::make_unique<RingForward>(given, oracle, model.uses);
  }

  void commit() {
    ZoUpdates step;
    step.gamma = {1.0F, 0.999F};  // The third group is not trained.
    for (const StepNoise& noise : forward->noises()) {
      const auto scale = [&] { return static_cast<float>(1e-2 * oracle.rng().normal()); };
      step.records.push_back({noise, {scale(), scale()}});
    }
    for (const std::size_t i : first) move(oracle.uses[i], step);
    masters.append(step);
    forward->ring.finish();
  }
  void run_step(int directions = 1) { forward->begin(directions), forward->in_order(), commit(); }
  void run_evaluation() {
    forward->begin_evaluation();
    forward->in_order();
    forward->ring.finish();
  }
  void expect_flushed() {
    forward->ring.flush();
    for (const std::size_t i : first) {
      const StreamedWeight& weight = model.uses[i];
      EXPECT_EQ(std::memcmp(weight.host, oracle.uses[i].host, weight.bytes()), 0)
          << weight.name << " of step " << masters.next_step();
    }
  }
  std::uint64_t streamed_bytes() const {  // Counts each storage once.
    std::uint64_t bytes = 0;
    for (const std::size_t i : first) {
      if (!forward->ring.is_resident(static_cast<int>(i))) bytes += model.uses[i].bytes();
    }
    return bytes;
  }

  RingModel model, oracle;
  std::vector<std::size_t> first;  // Uses.
  HostMasters masters;
  std::unique_ptr<RingForward> forward;

 private:
  void move(const StreamedWeight& weight, const ZoUpdates& step) {
    const std::uint64_t tensor = stable_hash(weight.name);
    std::vector<PendingUpdate> pending;
    for (const ZoUpdates::Record& r : step.records) {
      pending.push_back({{r.noise.seed, r.noise.step, tensor, r.noise.purpose},
                         weight.group < 2 ? r.scale[static_cast<std::size_t>(weight.group)] : 0});
    }
    const float gamma = weight.group == 1 ? 0.999F : 1.0F;
    const std::span own(static_cast<std::byte*>(const_cast<void*>(weight.host)), weight.bytes());
    cpu::materialise(own, weight.dtype(), own, weight.dtype(),
                     {forward_family(), 0, gamma, pending},
                     weight.dtype() == DType::kBF16 ? Rounding::kStochastic : Rounding::kNearest,
                     {7, masters.next_step() + 1, tensor, kBaseRoundingPurpose});
  }
  NoiseFamily forward_family() const { return masters.steps()->family; }
};

}  // namespace sluiceway::test
