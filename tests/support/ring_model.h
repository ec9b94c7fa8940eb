// Weights of a zeroth-order run, in host memory or in a source, and what a forward must read of
// them.
#pragma once

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "kernels/base/check.h"
#include "kernels/base/elements.h"
#include "kernels/perturb.h"
#include "runtime/engine/zo/zo_pass.h"
#include "tests/support/rng.h"

namespace sluiceway::test {

class RingModel {
 public:
  explicit RingModel(std::uint64_t seed) : rng_(seed) {}

  // Each weight is a module of its own, unless join_module() says otherwise.
  int add(std::int64_t elements, DType dtype = DType::kF32, int group = 0, bool keep = false) {
    std::vector<std::byte> bytes(static_cast<std::size_t>(elements) * size_bytes(dtype));
    for (std::int64_t i = 0; i < elements; ++i) {
      const auto x = static_cast<float>(rng_.normal());
      const auto k = static_cast<std::size_t>(i);
      if (dtype == DType::kF32) std::memcpy(&bytes[4 * k], &x, 4);
      if (dtype == DType::kBF16) {
        const bf16 half = from_float<bf16>(x);
        std::memcpy(&bytes[2 * k], &half, 2);
      }
    }
    base_.push_back(std::make_unique<std::vector<std::byte>>(std::move(bytes)));
    const int i = static_cast<int>(uses.size());
    uses.push_back(
        {concat("w", i), elements, dtype, group, next_module(), base_.back()->data(), keep});
    return i;
  }
  void join_module() { uses.back().module = uses.at(uses.size() - 2).module; }
  void tie(int to) {
    const int module = next_module();
    uses.push_back(uses[static_cast<std::size_t>(to)]);
    uses.back().name = "tied";
    uses.back().module = module;
    uses.back().keep = false;
  }
  void add_random(int count) {
    const std::int64_t sizes[] = {1, 67, 1031, 1100, 4099};
    for (int i = 0; i < count; ++i) {
      add(sizes[rng_.below(5)], rng_.below(2) == 0 ? DType::kF32 : DType::kBF16,
          static_cast<int>(rng_.below(3)), rng_.below(6) == 0);
      if (uses.size() > 1 && rng_.below(3) == 0) join_module();
    }
  }
  // From now on the use, and uses tied to it, are read from a source, which has sourced().
  void move_to_source(int use) {
    const void* const host = uses.at(static_cast<std::size_t>(use)).host;
    if (host == nullptr) return;
    for (StreamedWeight& other : uses) {
      if (other.host != host) continue;
      other.host = nullptr;
      other.source = static_cast<int>(sourced_.size());
    }
    sourced_.emplace_back(static_cast<const std::byte*>(host),
                          uses[static_cast<std::size_t>(use)].bytes());
  }
  const std::vector<std::span<const std::byte>>& sourced() const { return sourced_; }
  Rng& rng() { return rng_; }
  std::vector<std::vector<int>> modules() const {
    std::vector<std::vector<int>> all;
    for (std::size_t i = 0; i < uses.size(); ++i) {
      if (i == 0 || uses[i].module != uses[i - 1].module) all.emplace_back();
      all.back().push_back(static_cast<int>(i));
    }
    return all;
  }

  // Returns what a forward reads; without noise: in an evaluation.
  std::vector<std::byte> expected(int use, Side side, const std::optional<StepNoise>& noise,
                                  const ZoUpdates& updates, NoiseFamily family) const {
    const StreamedWeight& weight = uses.at(static_cast<std::size_t>(use));
    const auto first = std::find_if(uses.begin(), uses.end(), [&](const StreamedWeight& other) {
      return base_of(other) == base_of(weight);
    });
    const auto key = [&](const StepNoise& n) {
      return NoiseKey{n.seed, n.step, stable_hash(first->name), n.purpose};
    };
    const auto group = static_cast<std::size_t>(weight.group);
    std::vector<PendingUpdate> pending;
    for (const ZoUpdates::Record& r : updates.records) {
      pending.push_back({key(r.noise), group < r.scale.size() ? r.scale[group] : 0});
    }
    Theta theta{family, 0, 1.0F, pending};
    if (group < updates.gamma.size()) theta.gamma = updates.gamma[group];
    const std::span w(base_of(weight), weight.bytes());
    std::vector<std::byte> plus(weight.copy_bytes()), minus(weight.copy_bytes());
    if (!noise) {
      cpu::materialise(w, weight.dtype(), plus, weight.copy_dtype(), theta);
      return plus;
    }
    cpu::perturb(w, weight.dtype(), plus, minus, weight.copy_dtype(), theta, key(*noise),
                 noise->eps);
    return side == Side::kPlus ? plus : minus;
  }

  std::vector<StreamedWeight> uses;

 private:
  int next_module() const { return uses.empty() ? 0 : uses.back().module + 1; }

  const std::byte* base_of(const StreamedWeight& weight) const {
    if (weight.source < 0) return static_cast<const std::byte*>(weight.host);
    return sourced_.at(static_cast<std::size_t>(weight.source)).data();
  }

  Rng rng_;
  std::vector<std::span<const std::byte>> sourced_;  // Parts of base_.
  std::vector<std::unique_ptr<std::vector<std::byte>>> base_;
};

}  // namespace sluiceway::test
