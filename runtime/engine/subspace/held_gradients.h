// Reserves device bytes for gradients that wait for step() because a residual needs them.
//
// A residual takes its turn in one of `turns` steps. In other steps nobody reads its gradient, so
// the reservation covers the turn that holds the most bytes.
//
// Thread safety: one thread at a time.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <string_view>
#include <utility>
#include <vector>

#include "runtime/memory/budget.h"

namespace sluiceway {

class HeldGradients {
 public:
  explicit HeldGradients(int turns) : bytes_of_turn_(static_cast<std::size_t>(turns)) {}

  // Adds a gradient of `bytes` that waits in turn `turn`. OutOfMemory, naming `purpose`: nothing
  // changed.
  void add(Budget& budget, std::size_t turn, std::uint64_t bytes, std::string_view purpose) {
    std::vector<std::uint64_t> after = bytes_of_turn_;
    after.at(turn) += bytes;
    reserve(budget, std::move(after), purpose);
  }
  // Adds a gradient that waits in every turn.
  void add_to_all(Budget& budget, std::uint64_t bytes, std::string_view purpose) {
    std::vector<std::uint64_t> after = bytes_of_turn_;
    for (std::uint64_t& turn : after) turn += bytes;
    reserve(budget, std::move(after), purpose);
  }
  std::uint64_t bytes() const noexcept {
    return *std::max_element(bytes_of_turn_.begin(), bytes_of_turn_.end());
  }

 private:
  void reserve(Budget& budget, std::vector<std::uint64_t> after, std::string_view purpose) {
    const std::uint64_t most = *std::max_element(after.begin(), after.end());
    if (most > bytes()) {
      parts_.push_back(budget.reserve(Tier::kDevice, most - bytes(), purpose));
    }
    bytes_of_turn_ = std::move(after);
  }

  std::vector<std::uint64_t> bytes_of_turn_;
  std::vector<Budget::Reservation> parts_;  // Together they reserve bytes().
};

}  // namespace sluiceway
