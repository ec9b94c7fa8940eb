// A run with low-rank noise: weights in host memory, and what its forward must read, by the
// definitions of low_rank_updates.h, one element at a time.
//
// A copy of its `state` records its progress; restoring the copy rolls the run back.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "kernels/base/check.h"
#include "runtime/engine/zo/scalar_log.h"
#include "runtime/engine/zo/zo_pass.h"
#include "tests/support/low_rank_reference.h"
#include "tests/support/noise_reference.h"
#include "tests/support/rng.h"

namespace sluiceway::test {

class LowRankRun {
 public:
  struct Sums {  // For a matrix the stacked factors of all periods; for a vector A.
    std::vector<float> left, right;
  };
  struct State {
    std::uint64_t step = 0;
    std::vector<double> gammas;
    std::vector<Sums> sums;  // By use; a tied one has none of its own.
  };

  LowRankRun(std::uint64_t seed, const LogShape& of) : shape(of), rng_(seed) {
    state.gammas.assign(shape.groups, 1);
  }

  // Each weight is a module of its own. `rows` 0: a vector.
  void add(std::int64_t rows, std::int64_t elements, DType dtype, int group) {
    auto base = std::make_unique<std::vector<float>>(rng_.vector(elements));
    if (dtype == DType::kBF16) {
      auto* const halves = reinterpret_cast<std::byte*>(base->data());
      for (std::size_t i = 0; i < base->size(); ++i) {  // In place: element i is read first.
        const bf16 half = from_float<bf16>((*base)[i]);
        std::memcpy(halves + 2 * i, &half, 2);
      }
    }
    StreamedWeight& use = uses.emplace_back();
    use.name = concat("w", uses.size());
    use.elements = elements;
    use.form = dtype;
    use.group = group;
    use.module = static_cast<int>(uses.size());
    use.host = base->data();
    use.keep = rows == 0;
    use.rows = rows;
    Sums& sums = state.sums.emplace_back();
    for (std::int64_t i = 0; rows == 0 && i < elements; ++i) sums.left.push_back(base_of(use, i));
    first_.push_back(first_.size());
    bases_.push_back(std::move(base));
  }
  void tie(std::size_t to) {
    uses.push_back(uses.at(to));
    uses.back().module = static_cast<int>(uses.size());
    state.sums.emplace_back();
    first_.push_back(to);
  }
  std::vector<StreamedWeight> trained() const {
    std::vector<StreamedWeight> all;
    for (std::size_t i = 0; i < uses.size(); ++i) {
      if (first_[i] == i) all.push_back(uses[i]);
    }
    return all;
  }

  // Noise of the next step.
  StepNoise noise(std::uint32_t direction, float eps) const {
    return {shape.run_seed, state.step, direction, eps};
  }

  void take_step(std::span<const float> g, std::span<const StepRate> rates) {
    for (std::size_t i = 0; i < rates.size(); ++i) {
      state.gammas[i] *= 1 - rates[i].lr * rates[i].weight_decay;
    }
    for (std::size_t use = 0; use < uses.size(); ++use) {
      if (first_[use] != use) continue;
      if (uses[use].rows > 0 && state.step % shape.noise.period_steps == 0) begin_period(use);
      const StepRate& rate = rates[static_cast<std::size_t>(uses[use].group)];
      const double gamma = state.gammas[static_cast<std::size_t>(uses[use].group)];
      for (std::uint32_t d = 0; d < shape.directions; ++d) {
        add_noise(use, d,
                  static_cast<float>(-(rate.lr * double{g[d]}) / (shape.directions * gamma)));
      }
    }
    ++state.step;
  }

  // Returns what a forward reads; without noise: in an evaluation.
  std::vector<std::byte> expected(std::size_t use, Side side,
                                  const std::optional<StepNoise>& with) const {
    const StreamedWeight& weight = uses.at(use);
    const auto gamma = static_cast<float>(state.gammas[static_cast<std::size_t>(weight.group)]);
    std::vector<float> z;
    if (with) z = drawn(first_[use], *with);
    std::vector<std::byte> out(weight.bytes());
    for (std::int64_t i = 0; i < weight.elements; ++i) {
      float x = gamma * summed(first_[use], i);
      if (with) {
        const float eps = side == Side::kPlus ? with->eps : -with->eps;
        x = std::fma(eps, z[static_cast<std::size_t>(i)], x);
      }
      const bf16 half = from_float<bf16>(x);
      const std::size_t size = size_bytes(weight.dtype());
      const void* const rounded =
          weight.dtype() == DType::kF32 ? static_cast<const void*>(&x) : &half;
      std::memcpy(out.data() + static_cast<std::size_t>(i) * size, rounded, size);
    }
    return out;
  }

  Rng& rng() { return rng_; }

  LogShape shape;
  std::vector<StreamedWeight> uses;
  State state;

 private:
  static constexpr std::uint32_t kRightFactors = 0xFFFFFFFFU;

  float z_of(std::size_t use, std::uint64_t step, std::uint32_t purpose, std::size_t i) const {
    const NoiseKey key{shape.run_seed, step, stable_hash(uses[use].name), purpose};
    return reference_z(static_cast<NoiseFamily>(shape.noise.family), key, i);
  }

  static float base_of(const StreamedWeight& weight, std::int64_t i) {
    if (weight.dtype() == DType::kF32) return static_cast<const float*>(weight.host)[i];
    bf16 half;
    std::memcpy(&half, static_cast<const std::byte*>(weight.host) + 2 * i, 2);
    return to_float(half);
  }

  std::vector<float> v_of(std::size_t use, std::uint64_t step) const {
    const std::size_t rank = shape.noise.rank;
    const auto scale = static_cast<float>(1 / std::sqrt(static_cast<double>(rank)));
    std::vector<float> v(rank * static_cast<std::size_t>(uses[use].elements / uses[use].rows));
    for (std::size_t i = 0; i < v.size(); ++i) {
      v[i] = scale * z_of(use, step / shape.noise.period_steps, kRightFactors, i);
    }
    return v;
  }

  void begin_period(std::size_t use) {
    Sums& sums = state.sums[use];
    const std::vector<float> v = v_of(use, state.step);
    sums.right.insert(sums.right.end(), v.begin(), v.end());
    sums.left.resize(sums.left.size() +
                     shape.noise.rank * static_cast<std::size_t>(uses[use].rows));
  }

  // Adds to the factors of the last period, or to all of a vector.
  void add_noise(std::size_t use, std::uint32_t direction, float scale) {
    std::vector<float>& sum = state.sums[use].left;
    const std::int64_t rows = uses[use].rows;
    const std::size_t count =
        rows > 0 ? shape.noise.rank * static_cast<std::size_t>(rows) : sum.size();
    for (std::size_t i = 0; i < count; ++i) {
      float& x = sum[sum.size() - count + i];
      x = std::fma(scale, z_of(use, state.step, direction, i), x);
    }
  }

  LowRank product(const StreamedWeight& weight, const std::vector<float>& left,
                  const std::vector<float>& right) const {
    const std::int64_t k = static_cast<std::int64_t>(left.size()) / weight.rows;
    return {{left.data(), k, weight.rows}, {right.data(), k, weight.elements / weight.rows}};
  }

  float summed(std::size_t use, std::int64_t i) const {
    const StreamedWeight& weight = uses[use];
    const Sums& sums = state.sums[use];
    if (weight.rows == 0) return sums.left[static_cast<std::size_t>(i)];
    const std::int64_t cols = weight.elements / weight.rows;
    return reference_added(base_of(weight, i), product(weight, sums.left, sums.right), i / cols,
                           i % cols);
  }

  std::vector<float> drawn(std::size_t use, const StepNoise& noise) const {
    const StreamedWeight& weight = uses[use];
    const auto elements = static_cast<std::size_t>(weight.elements);
    std::vector<float> z(weight.rows > 0 ? shape.noise.rank * static_cast<std::size_t>(weight.rows)
                                         : elements);
    for (std::size_t i = 0; i < z.size(); ++i) z[i] = z_of(use, noise.step, noise.purpose, i);
    if (weight.rows == 0) return z;
    const std::vector<float> v = v_of(use, noise.step);
    const LowRank uv = product(weight, z, v);
    std::vector<float> all(elements);
    const std::int64_t cols = weight.elements / weight.rows;
    for (std::int64_t i = 0; i < weight.elements; ++i) {
      all[static_cast<std::size_t>(i)] = reference_added(0, uv, i / cols, i % cols);
    }
    return all;
  }

  Rng rng_;
  std::vector<std::size_t> first_;  // By use: the first use of the same weight.
  std::vector<std::unique_ptr<std::vector<float>>> bases_;
};

}  // namespace sluiceway::test
