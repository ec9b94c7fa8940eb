#include "runtime/engine/zo/zo_engine.h"

#include <filesystem>
#include <utility>

#include "kernels/base/check.h"
#include "kernels/perturb.h"

namespace sluiceway {
namespace {

ScalarLog open_log(const ZoEngineOptions& options) {
  const ArenaBase base = options.arena ? options.arena->base() : ArenaBase{options.base, {}};
  if (std::filesystem::exists(options.log_path)) {
    return ScalarLog::open(options.log_path, options.shape, base);
  }
  return ScalarLog::create(options.log_path, options.shape, base.base);
}

}  // namespace

ZoEngine::ZoEngine(const ZoEngineOptions& options)
    : ring_options_(options.ring),
      eps_(options.eps),
      arena_(options.arena),
      low_rank_(make_factors(options)),
      log_(open_log(options)) {
  const DeviceId device = ring_options_.lanes.device;
  note(device.is_host() ? StreamRef::host() : StreamRef::cuda(device.ordinal(), nullptr));
  ring_options_.family = static_cast<NoiseFamily>(options.shape.noise.family);
  ring_options_.low_rank = low_rank_.get();
  ring_options_.lanes.trace = std::make_shared<Trace>();
  if (arena_ != nullptr) ring_options_.source = arena_;
  replay_all();
  catch_up();
}

void ZoEngine::stream(std::vector<ZoWeight> uses) {
  SLUICEWAY_CHECK(passing_ == Passing::kNone,
                  "stream: a pass has begun; call commit() or finish() first");
  ring_.reset();  // Its slots go before others come.
  uses_ = std::move(uses);
  try {
    make_ring();
  } catch (...) {
    uses_.clear();
    throw;
  }
}

void ZoEngine::make_ring() {
  ring_.emplace(ring_options_, uses_);
  try {
    tell_ring();
  } catch (...) {
    ring_.reset();
    passing_ = Passing::kNone;
    throw;
  }
}

// Where it is gone since a consolidation failed.
void ZoEngine::need_ring() {
  if (!ring_ && !uses_.empty()) make_ring();
}

WeightRing& ZoEngine::ring() {
  SLUICEWAY_CHECK(ring_.has_value(), "zo engine: no weights are streamed; call stream() first");
  return *ring_;
}

StepNoise ZoEngine::noise(std::uint32_t direction) const {
  return {shape().run_seed, log_.next_step(), direction, eps_};
}

std::unique_ptr<LowRankUpdates> ZoEngine::make_factors(const ZoEngineOptions& options) {
  if (options.shape.noise.rank == 0) return nullptr;
  EngineLanes::Options& lanes = ring_options_.lanes;
  lanes.budget = Budget(lanes.limits);
  return std::make_unique<LowRankUpdates>(options.shape, options.trained, *lanes.budget,
                                          lanes.device);
}

LowRankUpdates& ZoEngine::low_rank(StreamRef compute) {
  SLUICEWAY_CHECK(low_rank_ != nullptr,
                  "zo engine: low_rank() needs noise of low rank, but the noise is elementwise");
  catch_up();
  note(compute);
  return *low_rank_;
}

void ZoEngine::note(StreamRef compute) {
  std::erase(computes_, compute);
  computes_.push_back(compute);
}

void ZoEngine::catch_up() {
  if (!low_rank_ || low_rank_->is_at(log_)) return;
  finish();  // The ring may have been interrupted behind the commit.
  low_rank_->follow(log_, computes_);
  computes_.erase(computes_.begin(), computes_.end() - 1);
}

void ZoEngine::make_room() {
  const std::uint64_t step = log_.next_step();
  try {
    low_rank_->prepare(step, computes_);
  } catch (const OutOfMemory&) {
    if (!give_way(step)) throw;
  }
}

bool ZoEngine::give_way(std::uint64_t step) {
  bool may = false;  // Whether something is resident that need not be.
  for (std::size_t use = 0; ring_ && use < uses_.size(); ++use) {
    may = may || (ring_->is_resident(static_cast<int>(use)) && !uses_[use].keep);
  }
  if (!may) return false;
  ring_.reset();
  try {
    low_rank_->prepare(step, computes_);
    need_ring();
    return true;
  } catch (const OutOfMemory&) {  // Without any, too.
    low_rank_->let_go();
    catch_up();
    need_ring();
    return false;
  }
}

void ZoEngine::check_room(const char* function) const {
  const std::size_t records = updates_.records.size();
  SLUICEWAY_CHECK(records + shape().directions <= kMaxPending, function, ": ", records,
                  " updates are pending on the base of step ", log_.base().step,
                  " and a step adds ", shape().directions, ", expected at most ", kMaxPending,
                  "; consolidate into a new base");
}

void ZoEngine::begin_step() {
  catch_up();
  check_room("begin_step");
  need_ring();
  if (low_rank_ && passing_ == Passing::kNone) make_room();
  std::vector<StepNoise> noises;
  for (std::uint32_t d = 0; d < shape().directions; ++d) noises.push_back(noise(d));
  if (ring_) ring_->begin_step(noises);
  passing_ = Passing::kStep;
}

void ZoEngine::begin_evaluation() {
  need_ring();
  catch_up();
  if (ring_) ring_->begin_evaluation();
  passing_ = Passing::kEvaluation;
}

const void* ZoEngine::acquire(int use, int direction, Side side, StreamRef compute) {
  note(compute);
  return ring().acquire(use, direction, side, compute);
}

void ZoEngine::release(int use, int direction, StreamRef compute) {
  ring().release(use, direction, compute);
}

void ZoEngine::commit(std::span<const float> g, std::span<const StepRate> rates, bool non_finite) {
  SLUICEWAY_CHECK(passing_ == Passing::kStep,
                  "commit: ", passing_ == Passing::kNone ? "no pass" : "an evaluation",
                  " has begun; call begin_step() first");
  check_room("commit");
  const std::uint64_t step = log_.next_step();
  std::vector<ZoUpdates::Record> records;
  const std::uint32_t replayed = low_rank_ ? 0 : shape().directions;
  for (std::uint32_t d = 0; d < replayed; ++d) records.push_back({noise(d), {}});
  updates_.records.reserve(updates_.records.size() + records.size());
  try {
    log_.append({.step = step, .g = g, .rates = rates, .seeds = {}, .non_finite = non_finite});
  } catch (...) {
    if (log_.next_step() != step) replay_all();  // It was written, and not synced.
    throw;
  }
  for (std::uint32_t group = 0; group < shape().groups; ++group) {
    const Replay last = log_.pending(group, step, step + 1);
    updates_.gamma.at(group) = last.gamma;
    for (std::uint32_t d = 0; d < replayed; ++d) {
      records.at(d).scale.push_back(last.updates.at(d).scale);
    }
  }
  for (ZoUpdates::Record& record : records) updates_.records.push_back(std::move(record));
  finish();
}

// The step is made when the log has it: where the ring was interrupted, it is told again later.
void ZoEngine::finish() {
  if (passing_ == Passing::kNone) return;
  if (ring_) ring_->commit(updates_);
  passing_ = Passing::kNone;
}

void ZoEngine::tell_ring() {
  if (!ring_) return;
  begin_evaluation();
  finish();
}

void ZoEngine::rollback(std::uint64_t step) {
  go_back([&] { log_.rollback(step); });
}

void ZoEngine::restore(std::uint64_t entries) {
  go_back([&] { log_.restore(entries); });
}

void ZoEngine::go_back(const std::function<void()>& change) {
  finish();
  try {
    change();
  } catch (...) {  // It may be written, and not synced.
    replay_all();
    tell_ring();
    throw;
  }
  replay_all();
  tell_ring();
}

void ZoEngine::consolidate(const ZoArena::Consolidation& how) {
  SLUICEWAY_CHECK(
      arena_ != nullptr,
      "consolidate: the base is in host memory; use an arena, which can hold a new base");
  SLUICEWAY_CHECK(low_rank_ == nullptr,
                  "consolidate: noise is of low rank, whose updates are summed beside the base; "
                  "use elementwise noise");
  SLUICEWAY_CHECK(passing_ == Passing::kNone,
                  "consolidate: a pass has begun; call commit() or finish() first");
  ring_.reset();
  arena_->consolidate(log_, how);
  replay_all();
  need_ring();
}

std::vector<double> ZoEngine::gammas() const {
  return sluiceway::gammas(log_.history(), log_.base(), log_.next_step());
}

void ZoEngine::replay_all() {
  const std::uint64_t to = log_.next_step(), from = low_rank_ ? to : log_.base().step;
  if (low_rank_) low_rank_->forget();
  ZoUpdates all;
  for (std::uint64_t step = from; step < to; ++step) {
    for (std::uint32_t d = 0; d < shape().directions; ++d) {
      all.records.push_back({{shape().run_seed, step, d, 0}, {}});
    }
  }
  for (std::uint32_t group = 0; group < shape().groups; ++group) {
    const Replay replay = log_.pending(group, from, to);
    all.gamma.push_back(replay.gamma);
    for (std::size_t i = 0; i < replay.updates.size(); ++i) {
      all.records.at(i).scale.push_back(replay.updates[i].scale);
    }
  }
  updates_ = std::move(all);
}

}  // namespace sluiceway
