// A made-up zeroth-order run on an arena, and its weights by the definitions alone: every number is
// a function of the seed, and theta is summed one element at a time by std::fma.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <functional>
#include <future>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "kernels/base/checksum.h"
#include "kernels/perturb.h"
#include "runtime/engine/zo/zo_arena.h"
#include "runtime/store/memory_io.h"
#include "tests/support/io_back_ends.h"
#include "tests/support/logged_run.h"
#include "tests/support/noise_reference.h"

namespace sluiceway::test {

using WeightBytes = std::vector<std::vector<std::byte>>;

inline constexpr std::uint64_t kArenaChunk = 2 * kBlockBytes;

// Sizes of one element, less and more than a chunk, and several chunks; each type; two groups, and
// weights without a group.
inline std::vector<ArenaWeight> arena_weights() {
  return {{"one", 1, DType::kF32, 0},
          {"embedding", 3 * 4096 + 17, DType::kBF16, 0},
          {"below", 4095, DType::kBF16, 1},
          {"chunk", 4096, DType::kBF16, 1},
          {"above", 4097, DType::kBF16, 1},
          {"frozen", 5003, DType::kBF16, ArenaWeight::kUntrained},
          {"single", 2 * 2048 + 1, DType::kF32, 0},
          {"half", 5001, DType::kF16, 1},
          {"norm", 7, DType::kBF16, 1}};
}

inline LogShape arena_log_shape(std::uint32_t directions = 2) {
  LogShape shape{.run_seed = 20261123, .groups = 2, .directions = directions};
  shape.noise.family = static_cast<std::uint32_t>(NoiseFamily::kRademacher);
  return shape;
}

template <typename Act>
auto with_type_of(DType dtype, const Act& act) {
  if (dtype == DType::kF32) return act(float{});
  if (dtype == DType::kF16) return act(f16{});
  return act(bf16{});
}

inline WeightBytes random_bytes(const std::vector<ArenaWeight>& weights, std::uint64_t seed) {
  Rng rng(seed);
  WeightBytes all;
  for (const ArenaWeight& weight : weights) {
    all.push_back(with_type_of(weight.dtype, [&](auto type) {
      const auto values = rng.vector<decltype(type)>(weight.elements, 0.05);
      const auto bytes = std::as_bytes(std::span(values));
      return std::vector<std::byte>(bytes.begin(), bytes.end());
    }));
  }
  return all;
}

inline ZoArena::Fill fill_from(const WeightBytes& bytes) {
  return [&bytes](std::size_t weight, std::uint64_t first, std::span<std::byte> into) {
    std::ranges::copy(std::span(bytes.at(weight)).subspan(first, into.size()), into.begin());
  };
}

// The steps of append_steps() from a base on, by the definition in docs/zo_log.md section 3.
class ReferenceTheta {
 public:
  ReferenceTheta(const LogShape& shape, std::uint64_t from, std::uint64_t to)
      : shape_(shape), step_(to), gamma_(shape.groups, 1.0), scales_(shape.groups) {
    for (std::uint64_t step = from; step < to; ++step) {
      const UpdateEntry update = update_entry(shape, step);
      for (std::uint32_t i = 0; i < shape.groups; ++i) {
        const volatile double gamma = gamma_[i] * update.rates[i].decay;
        gamma_[i] = gamma;
        for (std::uint32_t d = 0; d < shape.directions; ++d) {
          const volatile double numerator = update.rates[i].lr * static_cast<double>(update.g[d]);
          const volatile double denominator = static_cast<double>(shape.directions) * gamma_[i];
          scales_[i].push_back({step, d, static_cast<float>(-numerator / denominator)});
        }
      }
    }
  }

  std::vector<std::byte> of(const ArenaWeight& weight, std::span<const std::byte> base,
                            bool new_base) const {
    std::vector<std::byte> out(base.begin(), base.end());
    if (!weight.is_trained() || scales_[static_cast<std::size_t>(weight.group)].empty()) return out;
    with_type_of(weight.dtype, [&](auto type) {
      using T = decltype(type);
      for (std::int64_t i = 0; i < weight.elements; ++i) {
        std::byte* const at = out.data() + static_cast<std::size_t>(i) * sizeof(T);
        T w;
        std::memcpy(&w, at, sizeof(T));
        const T made = element<T>(weight, static_cast<std::uint64_t>(i), to_float(w), new_base);
        std::memcpy(at, &made, sizeof(T));
      }
    });
    return out;
  }
  WeightBytes of(const std::vector<ArenaWeight>& weights, const WeightBytes& base,
                 bool new_base) const {
    WeightBytes all;
    for (std::size_t w = 0; w < weights.size(); ++w) {
      all.push_back(of(weights[w], base[w], new_base));
    }
    return all;
  }

 private:
  template <typename T>
  T element(const ArenaWeight& weight, std::uint64_t i, float w, bool new_base) const {
    const auto group = static_cast<std::size_t>(weight.group);
    const std::uint64_t tensor = stable_hash(weight.name);
    float a = w;
    for (const ReplayedUpdate& update : scales_[group]) {
      const NoiseKey key{shape_.run_seed, update.step, tensor, update.direction};
      a = std::fma(update.scale, reference_z(static_cast<NoiseFamily>(shape_.noise.family), key, i),
                   a);
    }
    const float theta = static_cast<float>(gamma_[group]) * a;
    if constexpr (std::is_same_v<T, bf16>) {
      const NoiseKey rounding{shape_.run_seed, step_, tensor, 1U << 31};
      if (new_base) return reference_stochastic(theta, noise_16(rounding, i));
    }
    return from_float<T>(theta);
  }

  LogShape shape_;
  std::uint64_t step_;
  std::vector<double> gamma_;                        // By group.
  std::vector<std::vector<ReplayedUpdate>> scales_;  // Also by group.
};

// Names the first weight whose bytes differ; empty if none does.
inline std::string difference(const std::vector<ArenaWeight>& weights, const WeightBytes& found,
                              const WeightBytes& expected) {
  for (std::size_t w = 0; w < weights.size(); ++w) {
    if (found.at(w) == expected.at(w)) continue;
    const auto at = std::ranges::mismatch(found[w], expected[w]).in1 - found[w].begin();
    return weights[w].name + " from byte " + std::to_string(at);
  }
  return "";
}

inline std::string outcome_of_read(ZoArena& arena, std::size_t weight, std::span<std::byte> into) {
  std::promise<std::string> said;
  arena.read(weight, into, [&said](const std::exception_ptr& error) {
    try {
      if (error) std::rethrow_exception(error);
      said.set_value("");
    } catch (const std::exception& known) {
      said.set_value(known.what());
    }
  });
  return said.get_future().get();
}

// Reads all weights with read() into memory that held other values.
inline WeightBytes read_all(ZoArena& arena) {
  WeightBytes all;
  for (std::size_t w = 0; w < arena.weights().size(); ++w) {
    const AlignedBytes memory(arena.read_bytes(w));
    std::ranges::fill(memory.span(), std::byte{0xCD});
    if (const std::string said = outcome_of_read(arena, w, memory.span()); !said.empty()) {
      throw Error(said);
    }
    const auto own = memory.span().first(arena.weights()[w].bytes());
    if (!std::ranges::all_of(memory.span().subspan(own.size()),
                             [](std::byte byte) { return byte == std::byte{0}; })) {
      throw Error(arena.weights()[w].name + " is not followed by zeros");
    }
    all.emplace_back(own.begin(), own.end());
  }
  return all;
}

// Returns all weights of a step, rounded to nearest, as an evaluation reads them.
inline WeightBytes exported(ZoArena& arena, const ScalarLog& log, std::uint64_t step) {
  WeightBytes all = read_all(arena);
  for (std::size_t w = 0; w < all.size(); ++w) {
    const ArenaWeight& weight = arena.weights()[w];
    if (!weight.is_trained()) continue;
    const LogShape& shape = log.history().header().shape;
    const Replay replay =
        log.pending(static_cast<std::uint32_t>(weight.group), log.base().step, step);
    std::vector<PendingUpdate> pending;
    for (const ReplayedUpdate& update : replay.updates) {
      pending.push_back({{shape.run_seed, update.step, stable_hash(weight.name), update.direction},
                         update.scale});
    }
    cpu::materialise(all[w], weight.dtype, all[w], weight.dtype,
                     {static_cast<NoiseFamily>(shape.noise.family), 0, replay.gamma, pending});
  }
  return all;
}

// Checks that the weights match the base's hash.
inline void expect_base_hash(ZoArena& arena) {
  const WeightBytes all = read_all(arena);
  Checksum sum;
  for (std::size_t w = 0; w < all.size(); ++w) {
    sum.update(hashed_header(arena.weights()[w]));
    sum.update(all[w]);
  }
  EXPECT_EQ(to_hex(sum.digest()), to_hex(arena.base().base.hash));
}

}  // namespace sluiceway::test
