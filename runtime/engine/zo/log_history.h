// The history in the entries of a scalar log: its current line of steps, and the lines that it has
// left.
//
// States form a tree: an update makes theta of step + 1 from theta of step, and a return lets the
// next update start from an older theta. The path from the root to the current theta is the line. A
// base belongs to the theta that it holds, so a base on an abandoned line is not on the current
// line.
//
// Thread safety: one thread at a time.
// Errors:        InvalidArgument: an entry that does not fit; nothing was changed.
// Cost:          about as much memory as the log has bytes; apply() of a return walks its line.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "runtime/engine/zo/log_format.h"

namespace sluiceway {

// One update of the line; valid until the history changes.
struct LoggedStep {
  std::uint64_t step = 0;
  bool non_finite = false;
  std::span<const std::uint64_t> seeds;  // One per direction, or none.
  std::span<const float> g;              // One per direction.
  std::span<const GroupRate> rates;      // One per group.
};

class LogHistory {
 public:
  explicit LogHistory(const LogHeader& header);

  void check(const LogEntry& entry) const;  // Throws what apply() would throw.
  void apply(const LogEntry& entry);

  const LogHeader& header() const noexcept { return header_; }
  std::uint64_t entries() const noexcept { return tips_.size() - 1; }
  std::uint64_t updates() const noexcept { return steps_.size(); }  // On all lines.

  // ---- The line ----
  std::uint64_t first_step() const noexcept { return states_[line_.front()].step; }
  std::uint64_t next_step() const noexcept { return states_[line_.back()].step; }
  LoggedStep update(std::uint64_t step) const;  // InvalidArgument: not on the line.
  std::vector<Base> bases() const;              // In order of announcement; never empty.
  bool has_base(const Base& base) const;

  // ---- All lines ----
  // Returns the last base with this hash, or none.
  std::optional<Base> base_anywhere(const BaseHash& hash) const;
  std::uint64_t greatest_generation() const noexcept;
  // Returns the next step of the line that the log had after `entries` entries.
  std::uint64_t next_step_after(std::uint64_t entries) const;
  // Returns the entry counts at which lines ended that were then left; a return to one resumes it.
  std::vector<std::uint64_t> left_lines() const { return left_; }

 private:
  using StateId = std::uint32_t;
  static constexpr std::uint32_t kNone = ~0U;
  struct State {
    std::uint64_t step = 0;
    StateId parent = kNone;  // kNone: a root.
    std::uint32_t update = kNone;
  };
  struct Announced {
    Base base;
    StateId state = 0;
  };

  void check_one(const UpdateEntry& update) const;
  void check_one(const BaseEntry& entry) const;
  void check_one(const ReturnEntry& entry) const;
  void apply_one(const UpdateEntry& update);
  void apply_one(const BaseEntry& entry);
  void apply_one(const ReturnEntry& entry);
  bool is_on_line(StateId state) const;
  StateId ancestor(StateId state, std::uint64_t step) const;  // kNone: the line begins later.
  std::vector<StateId> line_to(StateId state) const;

  LogHeader header_;
  std::vector<State> states_;
  std::vector<StateId> line_;  // From the root on, one step apart.
  std::vector<StateId> tips_;  // Last state of the line before all entries and after each.
  std::vector<Announced> bases_;
  std::vector<std::uint64_t> left_;
  // By update, in the order of the log.
  struct Step {
    std::uint64_t step = 0;
    bool non_finite = false;
  };
  std::vector<Step> steps_;
  std::vector<std::uint64_t> seeds_;
  std::vector<float> g_;
  std::vector<GroupRate> rates_;
};

}  // namespace sluiceway
