#include "runtime/engine/zo/parity_engine.h"

#include <algorithm>
#include <utility>

#include "kernels/base/check.h"
#include "kernels/base/error.h"
#include "runtime/engine/zo/weight_places.h"

namespace sluiceway {

ParityEngine::ParityEngine(const ParityOptions& options)
    : ring_options_(options.ring),
      run_seed_(options.masters.run_seed),
      groups_(options.groups),
      directions_(options.directions),
      eps_(options.eps),
      masters_(options.masters) {
  SLUICEWAY_CHECK(groups_ > 0 && directions_ > 0 && directions_ <= kMaxPending,
                  "parity engine: ", groups_, " groups and ", directions_,
                  " directions, expected 1 or more, and at most ", kMaxPending, " directions");
  ring_options_.family = options.masters.family;
  ring_options_.masters = &masters_;
  ring_options_.lanes.trace = std::make_shared<Trace>();
  if (!options.wire) return;
  SLUICEWAY_CHECK(ring_options_.resident_room == 0, "parity engine: ", ring_options_.resident_room,
                  " bytes of resident_room with a wire form for the link, expected 0");
  images_.emplace(masters_, *options.wire);
  ring_options_.source = &*images_;
  ring_options_.reads_change = true;
}

ParityEngine::~ParityEngine() {
  fail_snapshot(std::make_exception_ptr(
      Error("snapshot: the engine was destroyed, and some weights with it")));
}

void ParityEngine::hold(std::vector<ZoWeight> weights) {
  SLUICEWAY_CHECK(masters_.size() == 0, "hold: ", masters_.size(),
                  " weights are held already; call hold() once");
  masters_.hold(std::move(weights));
  streamed_.assign(masters_.size(), false);
}

void ParityEngine::stream(std::vector<ZoWeight> uses) {
  SLUICEWAY_CHECK(passing_ == Passing::kNone,
                  "stream: a pass has begun; call commit() or finish() first");
  std::vector<std::size_t> master;
  std::vector<bool> keep(masters_.size());  // A master that is kept in any of its uses stays.
  for (const int use : first_uses(uses)) {
    master.push_back(masters_.index_of(uses[static_cast<std::size_t>(use)]));
  }
  for (std::size_t i = 0; i < uses.size(); ++i) {
    if (uses[i].keep) keep[master[i]] = true;
  }
  for (std::size_t i = 0; images_ && i < uses.size(); ++i) {
    uses[i].keep = keep[master[i]];
    images_->stand_for(uses[i], master[i]);
  }
  flush();
  ring_.reset();  // Its slots go before others come.
  uses_.clear();
  streamed_.assign(masters_.size(), false);
  ring_.emplace(ring_options_, uses);
  uses_ = std::move(uses);
  for (const std::size_t index : master) streamed_[index] = true;
}

WeightRing& ParityEngine::ring() {
  SLUICEWAY_CHECK(ring_.has_value(), "parity engine: no weights are streamed; call stream() first");
  return *ring_;
}

StepNoise ParityEngine::noise(std::uint32_t direction) const {
  return {run_seed_, next_step(), direction, eps_};
}

void ParityEngine::begin() {
  if (!ring_ && !uses_.empty()) ring_.emplace(ring_options_, uses_);  // Gone since restart().
  for (std::size_t i = 0; i < masters_.size(); ++i) {
    if (streamed_[i]) continue;
    if (const auto snapshot = masters_.snapshot(); snapshot && snapshot->step() < next_step()) {
      wait_until(
          [&](std::chrono::milliseconds most) { return snapshot->wait_until_read(i, most); });
    }
    masters_.catch_up(i);
  }
}

void ParityEngine::begin_step() {
  begin();
  std::vector<StepNoise> noises;
  for (std::uint32_t d = 0; d < directions_; ++d) noises.push_back(noise(d));
  if (ring_) ring_->begin_step(noises);
  passing_ = Passing::kStep;
}

void ParityEngine::begin_evaluation() {
  begin();
  if (ring_) ring_->begin_evaluation();
  passing_ = Passing::kEvaluation;
}

const void* ParityEngine::acquire(int use, int direction, Side side, StreamRef compute) {
  return ring().acquire(use, direction, side, compute);
}

void ParityEngine::release(int use, int direction, StreamRef compute) {
  ring().release(use, direction, compute);
}

void ParityEngine::commit(std::span<const float> g, std::span<const StepRate> rates) {
  SLUICEWAY_CHECK(passing_ == Passing::kStep,
                  "commit: ", passing_ == Passing::kNone ? "no pass" : "an evaluation",
                  " has begun; call begin_step() first");
  SLUICEWAY_CHECK(g.size() == directions_ && rates.size() == groups_, "commit: ", g.size(),
                  " gradients and ", rates.size(), " rates, expected ", directions_, " and ",
                  groups_);
  ZoUpdates step;
  for (std::uint32_t d = 0; d < directions_; ++d) step.records.push_back({noise(d), {}});
  for (const StepRate& rate : rates) {
    const double gamma = decay_factor(rate.lr, rate.weight_decay);
    step.gamma.push_back(gamma_as_float(gamma));
    for (std::uint32_t d = 0; d < directions_; ++d) {
      step.records[d].scale.push_back(update_scale(rate.lr, g[d], directions_, gamma));
    }
  }
  if (ring_) ring_->check_ends("commit");
  land_snapshot();
  masters_.append(std::move(step));
  passing_ = Passing::kEvaluation;  // Made, whatever interrupts what follows.
  finish();
}

void ParityEngine::finish() {
  if (passing_ == Passing::kNone) return;
  if (ring_) ring_->finish();
  passing_ = Passing::kNone;
}

void ParityEngine::flush() {
  SLUICEWAY_CHECK(passing_ == Passing::kNone,
                  "flush: a pass has begun; call commit() or finish() first");
  finish_snapshot();
  if (ring_) ring_->flush();
  for (std::size_t i = 0; i < masters_.size(); ++i) masters_.catch_up(i);
}

// Without finish(): whatever has failed, or is acquired, is of the ring that goes.
void ParityEngine::restart(std::uint64_t step) {
  fail_snapshot(std::make_exception_ptr(
      Error(concat("snapshot: other code has set the weights to step ", step, " meanwhile"))));
  ring_.reset();
  passing_ = Passing::kNone;
  masters_.restart(step);
}

// ---- Snapshots ----------------------------------------------------------------------------------

std::shared_ptr<MasterSnapshot> ParityEngine::begin_snapshot() {
  SLUICEWAY_CHECK(passing_ == Passing::kNone,
                  "begin_snapshot: a pass has begun; call commit() or finish() first");
  if (ring_) ring_->check_lanes();
  std::shared_ptr<MasterSnapshot> snapshot = masters_.begin_snapshot();
  try {
    if (ring_) ring_->copy_residents_back();
  } catch (...) {
    fail_snapshot(std::current_exception());
    throw;
  }
  return snapshot;
}

bool ParityEngine::finish_snapshot(std::optional<std::chrono::milliseconds> most) {
  const std::shared_ptr<MasterSnapshot> snapshot = masters_.snapshot();
  if (!snapshot) return true;
  if (snapshot->is_read() && !snapshot->has_failed()) return true;
  check_lanes();
  if (snapshot->is_read()) return true;
  SLUICEWAY_CHECK(passing_ == Passing::kNone,
                  "finish_snapshot: a pass has begun; call commit() or finish() first");
  land_snapshot();
  const bool is_read = wait_until(
      [&](std::chrono::milliseconds at_most) { return snapshot->wait_until_read(at_most); }, most);
  if (snapshot->has_failed()) check_lanes();
  return is_read;
}

void ParityEngine::drop_snapshot() noexcept {
  if (const auto snapshot = masters_.snapshot()) snapshot->let_go_of_all();
}

// S2. What passes have brought up is on its way already.
void ParityEngine::land_snapshot() {
  const std::shared_ptr<MasterSnapshot> snapshot = masters_.snapshot();
  if (!snapshot || snapshot->is_read() || snapshot->step() != next_step()) return;
  try {
    if (ring_) ring_->catch_up();
    for (std::size_t i = 0; i < masters_.size(); ++i) {
      if (masters_.step_of(i) != snapshot->step()) masters_.catch_up(i);
    }
  } catch (...) {
    fail_snapshot(std::current_exception());
    throw;
  }
}

bool ParityEngine::wait_until(const IsRead& is_read,
                              std::optional<std::chrono::milliseconds> most) {
  using std::chrono::milliseconds;
  for (;;) {
    const milliseconds now = std::min(most.value_or(milliseconds(50)), milliseconds(50));
    try {
      if (is_read(now)) return true;
    } catch (...) {
      check_lanes();  // What a lane has thrown says more.
      throw;
    }
    if (most && (*most -= now) <= milliseconds(0)) return false;
    check_lanes();
    if (ring_options_.lanes.check_interrupt) ring_options_.lanes.check_interrupt();
  }
}

// Who reads waits for what lanes bring: where one has failed, for ever.
void ParityEngine::check_lanes() {
  try {
    if (ring_) ring_->check_lanes();
  } catch (...) {
    fail_snapshot(std::current_exception());
    throw;
  }
}

void ParityEngine::fail_snapshot(std::exception_ptr error) noexcept {
  if (const auto snapshot = masters_.snapshot()) snapshot->fail(std::move(error));
}

}  // namespace sluiceway
