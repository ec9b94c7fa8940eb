// Passes through a WeightRing on the host that compare every copy with the oracle's.
#pragma once

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cstdint>
#include <cstring>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "runtime/engine/stream/weight_ring.h"
#include "runtime/engine/zo/host_masters.h"
#include "tests/support/ring_model.h"

namespace sluiceway::test {

struct ZoRingOptions : WeightRingOptions {
  using WeightRingOptions::WeightRingOptions;

  NoiseFamily family = NoiseFamily::kRademacher;
  HostMasters* masters = nullptr;  // Receive the steps; null: weights are only read.
};

// A WeightRing whose passes are those of an engine.
class ZoRing : public WeightRing {
 public:
  ZoRing(const ZoRingOptions& given, std::vector<StreamedWeight> uses)
      : WeightRing(with_masters(given), std::move(uses)),
        family_(given.family),
        masters_(given.masters) {}

  void begin_step(std::span<const StepNoise> noises) { begin(work(noises)); }
  void begin_evaluation() { begin(work({})); }
  const void* acquire(int use, int direction, Side side, StreamRef compute) {
    return WeightRing::acquire(use, direction, side == Side::kPlus ? 0 : 1, compute);
  }
  void commit(const ZoUpdates& updates) {
    finish();
    updates_ = std::make_shared<ZoUpdates>(updates);
  }
  void flush() { WeightRing::flush(work({})); }
  void copy_residents_back() { WeightRing::copy_residents_back(work({})); }

 private:
  static WeightRingOptions with_masters(const ZoRingOptions& given) {
    WeightRingOptions all = given;
    all.written = given.masters;
    return all;
  }
  std::shared_ptr<ZoPass> work(std::span<const StepNoise> noises) const {
    auto pass = std::make_shared<ZoPass>();
    pass->family = family_;
    pass->noises.assign(noises.begin(), noises.end());
    pass->updates = updates_;
    if (masters_ != nullptr) pass->steps = masters_->steps();
    return pass;
  }

  NoiseFamily family_;
  HostMasters* masters_;
  std::shared_ptr<const ZoUpdates> updates_;
};

inline ZoRingOptions ring_options(int depth = 2) {
  ZoRingOptions all(DeviceId::host());
  all.lanes.limits.fill(Budget::kUnlimited);
  all.depth = {depth, depth, depth};
  return all;
}

class RingForward {
 public:
  RingForward(const ZoRingOptions& given, RingModel& model)
      : RingForward(given, model, model.uses) {}
  // Works over the same weights in other memory.
  RingForward(const ZoRingOptions& given, RingModel& model, const std::vector<StreamedWeight>& uses)
      : model_(model), family_(given.family), ring(given, uses) {}

  void begin(int directions = 1) {
    noises_.clear();
    ++step_;
    for (int d = 0; d < directions; ++d) {
      noises_.push_back({7, step_, static_cast<std::uint32_t>(d), 1e-2F});
    }
    ring.begin_step(noises_);
  }
  void begin_evaluation() {
    noises_.clear();
    ring.begin_evaluation();
  }
  const std::vector<StepNoise>& noises() const { return noises_; }
  int directions() const { return std::max(1, static_cast<int>(noises_.size())); }
  void acquire(int use, int direction = 0) {
    const auto from = [&](Side side) {
      return static_cast<const std::byte*>(ring.acquire(use, direction, side, StreamRef::host()));
    };
    held_.push_back({use, direction, from(Side::kPlus), from(Side::kMinus)});
  }
  void check_and_release() {  // As late as the forward may read.
    for (const Held& h : held_) {
      expect_equal(h, Side::kPlus, h.plus);
      expect_equal(h, Side::kMinus, h.minus);
    }
    for (const Held& h : held_) ring.release(h.use, h.direction, StreamRef::host());
    held_.clear();
  }
  void use(int i, int direction = 0) {
    acquire(i, direction);
    check_and_release();
  }
  void in_order(const std::function<void()>& while_held = [] {}) {
    for (const std::vector<int>& module : model_.modules()) {
      for (int d = 0; d < directions(); ++d) {
        for (const int i : module) acquire(i, d);
        while_held();
        check_and_release();
      }
    }
  }
  void commit() {
    updates_.gamma = {1.0F, 0.999F};
    for (const StepNoise& noise : noises_) {
      ZoUpdates::Record& record = updates_.records.emplace_back(ZoUpdates::Record{noise, {}});
      for (int group = 0; group < 2; ++group) {  // The third group is not trained.
        record.scale.push_back(static_cast<float>(1e-2 * model_.rng().normal()));
      }
    }
    ring.commit(updates_);
  }
  void run_step(int directions = 1) { begin(directions), in_order(), commit(); }
  int size() const { return static_cast<int>(model_.uses.size()); }

 private:
  struct Held {
    int use, direction;
    const std::byte *plus, *minus;
  };

  void expect_equal(const Held& h, Side side, const std::byte* found) {
    std::optional<StepNoise> noise;
    if (!noises_.empty()) noise = noises_.at(static_cast<std::size_t>(h.direction));
    const std::vector<std::byte> expected = model_.expected(h.use, side, noise, updates_, family_);
    EXPECT_EQ(std::memcmp(found, expected.data(), expected.size()), 0)
        << model_.uses[static_cast<std::size_t>(h.use)].name << " in step " << step_
        << ", direction " << h.direction << " of " << directions();
  }

  RingModel& model_;
  NoiseFamily family_;
  std::vector<StepNoise> noises_;
  std::uint64_t step_ = 0;
  ZoUpdates updates_;
  std::vector<Held> held_;

 public:
  ZoRing ring;
};

// A step in two directions over five weights of a ring in which one fails. The first call to
// notice, for one the constructor, and each later call throw an error that `named` matches.
template <typename Matcher>
void expect_failure_comes_out(const ZoRingOptions& given, const RingModel& model, int failing,
                              const Matcher& named) {
  std::unique_ptr<ZoRing> ring;
  const auto pass = [&] {
    ring = std::make_unique<ZoRing>(given, model.uses);
    ring->begin_step(std::array{StepNoise{1, 1, 1, 1e-3F}, StepNoise{1, 1, 2, 1e-3F}});
    for (int i = 0; i < 5; ++i) {
      for (const int direction : {0, 1}) {
        ring->acquire(i, direction, Side::kPlus, StreamRef::host());
        ring->release(i, direction, StreamRef::host());
      }
    }
    ring->finish();
  };
  EXPECT_THAT(pass, named);
  if (ring == nullptr) return;
  EXPECT_THAT([&] { ring->acquire(failing, 0, Side::kMinus, StreamRef::host()); }, named);
}

}  // namespace sluiceway::test
