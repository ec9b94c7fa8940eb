// Tells whether to make updates before their step is decided: not while too many of them have to be
// made again.
//
//   allowed -> not      more than a quarter of the last kSteps were made again
//   not -> allowed      kSteps in a row were as expected
#pragma once

#include <bit>
#include <cstdint>

namespace sluiceway {

class RecentRedos {
 public:
  static constexpr int kSteps = 16;

  bool allow() const noexcept { return clean_to_go_ == 0; }

  // Notes a step that had an update: whether the expected values came true.
  void note(bool came_true) noexcept {
    if (!allow()) {
      clean_to_go_ = came_true ? clean_to_go_ - 1 : kSteps;
      return;
    }
    recent_ = static_cast<std::uint16_t>((unsigned{recent_} << 1U) | (came_true ? 0U : 1U));
    if (std::popcount(recent_) <= kSteps / 4) return;
    recent_ = 0;
    clean_to_go_ = kSteps;
  }

 private:
  std::uint16_t recent_ = 0;  // One bit per step; 1: made again.
  int clean_to_go_ = 0;
};

}  // namespace sluiceway
