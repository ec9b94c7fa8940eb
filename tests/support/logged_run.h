// A made-up zeroth-order run for tests of its log: every number is a function of seed and step.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>
#include <vector>

#include "runtime/engine/zo/scalar_log.h"
#include "tests/support/memory_folder.h"
#include "tests/support/rng.h"

namespace sluiceway::test {

// One step's scalars, with memory for them.
struct RunStep {
  std::uint64_t step = 0;
  std::vector<float> g;
  std::vector<StepRate> rates;
  std::vector<std::uint64_t> seeds;
  bool non_finite = false;

  StepScalars scalars() const { return {step, g, rates, seeds, non_finite}; }
};

// Some steps have g = 0 or a loss that is not finite, some groups no decay or no learning rate.
inline RunStep run_step(const LogShape& shape, std::uint64_t step) {
  Rng rng(shape.run_seed ^ (step * 0x9E3779B97F4A7C15U));
  RunStep made{step, rng.vector(shape.directions, 3), {}, {}, rng.below(7) == 0};
  if (made.non_finite || rng.below(7) == 0) made.g[0] = 0;
  for (std::uint32_t i = 0; i < shape.groups; ++i) {
    made.rates.push_back(
        {rng.below(9) == 0 ? 0 : rng.uniform(1e-6, 1e-2), i % 2 == 1 ? 0 : rng.uniform(0, 0.5)});
  }
  if (shape.records_seeds) {
    for (std::uint32_t d = 0; d < shape.directions; ++d) made.seeds.push_back(rng.bits());
  }
  return made;
}

inline LogShape random_shape(Rng& rng, std::uint32_t directions) {
  LogShape shape{rng.bits(), {}, 1 + static_cast<std::uint32_t>(rng.below(5)), directions};
  shape.noise = {static_cast<std::uint32_t>(rng.below(4)), static_cast<std::uint32_t>(rng.below(9)),
                 static_cast<std::uint32_t>(rng.below(99))};
  shape.records_seeds = rng.below(2) == 1;
  return shape;
}

inline Base random_base(Rng& rng, std::uint64_t generation, std::uint64_t step) {
  Base base{{}, generation, step};
  for (std::byte& byte : base.hash) byte = static_cast<std::byte>(rng.below(256));
  return base;
}

inline UpdateEntry update_entry(const LogShape& shape, std::uint64_t step) {
  const RunStep made = run_step(shape, step);
  UpdateEntry update{step, made.non_finite, made.seeds, made.g, {}};
  for (const StepRate& rate : made.rates) {
    const volatile double product = rate.lr * rate.weight_decay;  // Rounded by itself: no fma.
    update.rates.push_back({rate.lr, 1 - product});
  }
  return update;
}

inline void append_steps(ScalarLog& log, std::uint64_t to) {
  while (log.next_step() < to) {
    log.append(run_step(log.history().header().shape, log.next_step()).scalars());
  }
}

// Returns how the line differs from what append_steps() writes; empty if it does not.
inline std::string difference(const LogHistory& history) {
  for (std::uint64_t step = history.first_step(); step < history.next_step(); ++step) {
    const LoggedStep found = history.update(step);
    const UpdateEntry expected = update_entry(history.header().shape, step);
    const UpdateEntry copy{found.step,
                           found.non_finite,
                           {found.seeds.begin(), found.seeds.end()},
                           {found.g.begin(), found.g.end()},
                           {found.rates.begin(), found.rates.end()}};
    if (!(copy == expected)) return "step " + std::to_string(step);
  }
  return "";
}

inline std::vector<std::byte> file_bytes(const std::string& path) {
  std::ifstream in(path, std::ios::binary);
  const std::vector<char> chars{std::istreambuf_iterator<char>(in), {}};
  const auto bytes = std::as_bytes(std::span(chars));
  return {bytes.begin(), bytes.end()};
}

inline void write_file(const std::string& path, std::span<const std::byte> bytes) {
  std::ofstream out(path, std::ios::binary | std::ios::trunc);
  out.write(reinterpret_cast<const char*>(bytes.data()),
            static_cast<std::streamsize>(bytes.size()));
}

// Returns the files in the folder of `path` whose names start with that of `path` and `suffix`.
inline std::vector<std::string> files_beside(const std::string& path, const std::string& suffix) {
  std::vector<std::string> found;
  const std::filesystem::path whole(path);
  for (const auto& entry : std::filesystem::directory_iterator(whole.parent_path())) {
    if (entry.path().string().starts_with(path + suffix)) found.push_back(entry.path().string());
  }
  return found;
}

}  // namespace sluiceway::test
