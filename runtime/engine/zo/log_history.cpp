#include "runtime/engine/zo/log_history.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <utility>

#include "kernels/base/check.h"

namespace sluiceway {
namespace {

void check_rate(const GroupRate& rate, std::uint64_t step) {
  SLUICEWAY_CHECK(std::isfinite(rate.lr) && rate.lr >= 0, "scalar log: lr of step ", step, " is ",
                  rate.lr, ", expected a finite number of at least 0");
  SLUICEWAY_CHECK(rate.decay > 0 && rate.decay <= 1, "scalar log: the factor 1 - lr wd of step ",
                  step, " is ", rate.decay, ", expected above 0 and at most 1");
}

// So that what follows does not throw; a vector that grows by one each time would copy itself.
template <typename T>
void make_room(std::vector<T>& in, std::size_t more = 1) {
  if (in.capacity() - in.size() < more) in.reserve(std::max(2 * in.size(), in.size() + more));
}

template <typename T>
void add(std::vector<T>& to, const std::vector<T>& some) {
  to.insert(to.end(), some.begin(), some.end());
}

}  // namespace

LogHistory::LogHistory(const LogHeader& header)
    : header_(header), states_{{header.first.step}}, line_{0}, tips_{0}, bases_{{header.first, 0}} {
  check_shape(header.shape);
}

void LogHistory::check(const LogEntry& entry) const {
  SLUICEWAY_CHECK(states_.size() < kNone && tips_.size() < kNone, "scalar log: has ", entries(),
                  " entries, which is the limit; branch the log");
  std::visit([&](const auto& one) { check_one(one); }, entry);
}

void LogHistory::apply(const LogEntry& entry) {
  check(entry);
  make_room(tips_);
  std::visit([&](const auto& one) { apply_one(one); }, entry);
  tips_.push_back(line_.back());
}

void LogHistory::check_one(const UpdateEntry& update) const {
  const LogShape& shape = header_.shape;
  SLUICEWAY_CHECK(update.step == next_step(), "scalar log: update of step ", update.step,
                  ", expected step ", next_step());
  SLUICEWAY_CHECK(update.step != std::numeric_limits<std::uint64_t>::max(),
                  "scalar log: update of step ", update.step, ", expected a smaller step");
  SLUICEWAY_CHECK(update.g.size() == shape.directions, "scalar log: step ", update.step, " has ",
                  update.g.size(), " directions, expected ", shape.directions);
  SLUICEWAY_CHECK(update.rates.size() == shape.groups, "scalar log: step ", update.step, " has ",
                  update.rates.size(), " parameter groups, expected ", shape.groups);
  const std::size_t seeds = shape.records_seeds ? shape.directions : 0;
  SLUICEWAY_CHECK(update.seeds.size() == seeds, "scalar log: step ", update.step, " has ",
                  update.seeds.size(), " seeds, expected ", seeds);
  for (std::size_t d = 0; d < update.g.size(); ++d) {
    SLUICEWAY_CHECK(
        std::isfinite(update.g[d]), "scalar log: g of direction ", d, " in step ", update.step,
        " is ", update.g[d],
        ", expected a finite number; if a loss is not finite, pass g = 0 and set non_finite");
  }
  SLUICEWAY_CHECK(!update.non_finite || std::ranges::find(update.g, 0.0F) != update.g.end(),
                  "scalar log: a loss of step ", update.step,
                  " is marked as not finite, but no g is 0; pass g = 0 for its direction");
  for (const GroupRate& rate : update.rates) check_rate(rate, update.step);
}

// A base beyond the line is one that outlived the entries before it: the line begins anew there.
void LogHistory::check_one(const BaseEntry& entry) const {
  SLUICEWAY_CHECK(entry.base.step >= first_step(), "scalar log: base of step ", entry.base.step,
                  ", expected step ", first_step(), " or later, where this line begins");
}

void LogHistory::check_one(const ReturnEntry& entry) const {
  SLUICEWAY_CHECK(entry.entries <= entries(), "scalar log: return to entry ", entry.entries,
                  ", expected at most ", entries(), ", the number of entries");
  SLUICEWAY_CHECK(ancestor(tips_[entry.entries], entry.step) != kNone,
                  "scalar log: return to step ", entry.step, ", which the line of ", entry.entries,
                  " entries does not have; it ends at step ", next_step_after(entry.entries));
}

void LogHistory::apply_one(const UpdateEntry& update) {
  make_room(steps_);
  make_room(states_);
  make_room(line_);
  make_room(seeds_, update.seeds.size());
  make_room(g_, update.g.size());
  make_room(rates_, update.rates.size());
  // Nothing below throws.
  const auto number = static_cast<std::uint32_t>(steps_.size());
  steps_.push_back({update.step, update.non_finite});
  add(seeds_, update.seeds);
  add(g_, update.g);
  add(rates_, update.rates);
  states_.push_back({update.step + 1, line_.back(), number});
  line_.push_back(static_cast<StateId>(states_.size() - 1));
}

void LogHistory::apply_one(const BaseEntry& entry) {
  make_room(bases_);
  if (entry.base.step > next_step()) {
    make_room(left_);
    states_.push_back({entry.base.step});
    left_.push_back(entries());
    line_.assign(1, static_cast<StateId>(states_.size() - 1));
  }
  bases_.push_back({entry.base, line_[entry.base.step - first_step()]});
}

void LogHistory::apply_one(const ReturnEntry& entry) {
  std::vector<StateId> line = line_to(ancestor(tips_[entry.entries], entry.step));
  if (line.back() == line_.back()) return;
  const StateId left = line_.back();
  line_ = std::move(line);
  if (!is_on_line(left)) left_.push_back(entries());
}

bool LogHistory::is_on_line(StateId state) const {
  const std::uint64_t step = states_[state].step;
  return step >= first_step() && step <= next_step() && line_[step - first_step()] == state;
}

LogHistory::StateId LogHistory::ancestor(StateId state, std::uint64_t step) const {
  while (state != kNone && states_[state].step > step) state = states_[state].parent;
  return state != kNone && states_[state].step == step ? state : kNone;
}

std::vector<LogHistory::StateId> LogHistory::line_to(StateId state) const {
  std::vector<StateId> line;
  for (; state != kNone; state = states_[state].parent) line.push_back(state);
  std::ranges::reverse(line);
  return line;
}

LoggedStep LogHistory::update(std::uint64_t step) const {
  SLUICEWAY_CHECK(step >= first_step() && step < next_step(), "scalar log: has no step ", step,
                  ", expected ", first_step(), " or more and below ", next_step());
  const std::size_t n = states_[line_[step - first_step() + 1]].update;
  const std::size_t q = header_.shape.directions, groups = header_.shape.groups;
  const std::size_t seeds = header_.shape.records_seeds ? q : 0;
  return {step, steps_[n].non_finite, std::span(seeds_).subspan(n * seeds, seeds),
          std::span(g_).subspan(n * q, q), std::span(rates_).subspan(n * groups, groups)};
}

std::vector<Base> LogHistory::bases() const {
  std::vector<Base> found;
  for (const Announced& one : bases_) {
    if (is_on_line(one.state)) found.push_back(one.base);
  }
  return found;
}

bool LogHistory::has_base(const Base& base) const {
  return std::ranges::any_of(
      bases_, [&](const Announced& one) { return one.base == base && is_on_line(one.state); });
}

std::optional<Base> LogHistory::base_anywhere(const BaseHash& hash) const {
  for (auto one = bases_.rbegin(); one != bases_.rend(); ++one) {
    if (one->base.hash == hash) return one->base;
  }
  return std::nullopt;
}

std::uint64_t LogHistory::greatest_generation() const noexcept {
  std::uint64_t greatest = 0;
  for (const Announced& one : bases_) greatest = std::max(greatest, one.base.generation);
  return greatest;
}

std::uint64_t LogHistory::next_step_after(std::uint64_t entries_then) const {
  SLUICEWAY_CHECK(entries_then <= entries(), "scalar log: has ", entries(),
                  " entries, fewer than the requested ", entries_then);
  return states_[tips_[entries_then]].step;
}

}  // namespace sluiceway
