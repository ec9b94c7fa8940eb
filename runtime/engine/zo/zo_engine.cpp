#include "runtime/engine/zo/zo_engine.h"

#include <algorithm>
#include <numeric>
#include <utility>

#include "kernels/base/check.h"
#include "kernels/base/error.h"
#include "kernels/perturb.h"

namespace sluiceway {

ZoEngine::ZoEngine(const ZoEngineOptions& options)
    : ring_options_(options.ring), shape_(options.shape), eps_(options.eps) {
  EngineLanes::Options& lanes = ring_options_.lanes;
  const DeviceId device = lanes.device;
  const auto family = static_cast<NoiseFamily>(shape_.noise.family);
  note(device.is_host() ? StreamRef::host() : StreamRef::cuda(device.ordinal(), nullptr));
  lanes.trace = std::make_shared<Trace>();
  ring_options_.copy_lane = "perturb";
  if (options.mode == ZoMode::kLog) {
    if (shape_.noise.rank > 0) lanes.budget = Budget(lanes.limits);
    logged_ = std::make_unique<LoggedValues>(options, lanes.budget, device);
    if (options.arena != nullptr) ring_options_.source = options.arena;
    if (const LowRankUpdates* const factors = logged_->low_rank()) {
      ring_options_.scratch_bytes = factors->most_drawn_elems() * sizeof(float);
    }
    catch_up();
    return;
  }
  SLUICEWAY_CHECK(shape_.groups > 0 && shape_.directions > 0 && shape_.directions <= kMaxPending,
                  "zo engine: ", shape_.groups, " groups and ", shape_.directions,
                  " directions, expected 1 or more, and at most ", kMaxPending, " directions");
  masters_ = std::make_unique<HostMasters>(
      HostMasters::Options{shape_.run_seed, family, options.step, options.threads});
  ring_options_.written = masters_.get();
  if (!options.wire) return;
  SLUICEWAY_CHECK(ring_options_.resident_room == 0, "zo engine: ", ring_options_.resident_room,
                  " bytes of resident_room with a wire form for the link, expected 0");
  images_.emplace(*masters_, *options.wire);
  ring_options_.source = &*images_;
  ring_options_.reads_change = true;
}

ZoEngine::~ZoEngine() {
  fail_snapshot(std::make_exception_ptr(
      Error("snapshot: the engine was destroyed, and some weights with it")));
}

LoggedValues& ZoEngine::logged(const char* function) const {
  SLUICEWAY_CHECK(logged_ != nullptr, "zo engine: ", function,
                  "() needs mode log, but the mode is write_back");
  return *logged_;
}

HostMasters& ZoEngine::masters(const char* function) const {
  SLUICEWAY_CHECK(masters_ != nullptr, "zo engine: ", function,
                  "() needs mode write_back, but the mode is log");
  return *masters_;
}

void ZoEngine::check_between(const char* function) const {
  SLUICEWAY_CHECK(passing_ == Passing::kNone, function,
                  ": a pass has begun; call commit() or finish() first");
}

std::uint64_t ZoEngine::next_step() const {
  return logged_ ? logged_->log().next_step() : masters_->next_step();
}

StepNoise ZoEngine::noise(std::uint32_t direction) const {
  return {shape_.run_seed, next_step(), direction, eps_};
}

// ---- The ring -----------------------------------------------------------------------------------

void ZoEngine::stream(std::vector<StreamedWeight> uses) {
  check_between("stream");
  std::vector<std::size_t> written;
  if (masters_) {
    written = masters_of(uses);
    flush();
  }
  ring_.reset();  // Its slots go before others come.
  uses_.clear();
  streamed_.assign(streamed_.size(), false);
  ring_.emplace(ring_options_, uses);
  uses_ = std::move(uses);
  for (const std::size_t index : written) streamed_[index] = true;
}

// Where it is gone since a consolidation failed, or since restart().
void ZoEngine::need_ring() {
  if (!ring_ && !uses_.empty()) ring_.emplace(ring_options_, uses_);
}

WeightRing& ZoEngine::ring() {
  SLUICEWAY_CHECK(ring_.has_value(), "zo engine: no weights are streamed; call stream() first");
  return *ring_;
}

// ---- A pass -------------------------------------------------------------------------------------

std::shared_ptr<ZoPass> ZoEngine::work() const {
  auto pass = std::make_shared<ZoPass>();
  pass->family = static_cast<NoiseFamily>(shape_.noise.family);
  if (masters_) {
    pass->steps = masters_->steps();
  } else {
    pass->updates = logged_->updates();
    pass->low_rank = logged_->low_rank();
  }
  return pass;
}

void ZoEngine::begin(Passing what, std::span<const std::uint32_t> directions) {
  if (logged_) catch_up();
  if (logged_ && what == Passing::kStep) logged_->check_room("begin_step");
  need_ring();
  if (what == Passing::kStep && passing_ == Passing::kNone) make_room();
  if (masters_) catch_up_unstreamed();
  const std::shared_ptr<ZoPass> pass = work();
  for (const std::uint32_t d : directions) pass->noises.push_back(noise(d));
  if (ring_) ring_->begin(pass);
  passing_ = what;
}

void ZoEngine::begin_step(std::vector<std::uint32_t> directions) {
  if (directions.empty()) {
    directions.resize(shape_.directions);
    std::iota(directions.begin(), directions.end(), 0U);
  }
  for (const std::uint32_t d : directions) {
    SLUICEWAY_CHECK(d < shape_.directions, "begin_step: direction is ", d, ", expected 0 to ",
                    shape_.directions - 1);
  }
  begin(Passing::kStep, directions);
}
void ZoEngine::begin_evaluation() { begin(Passing::kEvaluation); }

const void* ZoEngine::acquire(int use, int round, Side side, StreamRef compute) {
  note(compute);
  return ring().acquire(use, round, side == Side::kPlus ? 0 : 1, compute);
}

void ZoEngine::release(int use, int round, StreamRef compute) {
  ring().release(use, round, compute);
}

void ZoEngine::commit(std::span<const float> g, std::span<const StepRate> rates, bool non_finite) {
  SLUICEWAY_CHECK(passing_ == Passing::kStep,
                  "commit: ", passing_ == Passing::kNone ? "no pass" : "an evaluation",
                  " has begun; call begin_step() first");
  if (ring_) ring_->check_ends("commit");
  if (logged_) {
    logged_->commit(g, rates, non_finite);
  } else {
    ZoUpdates step = written_step(g, rates);
    land_snapshot();
    masters_->append(std::move(step));
  }
  passing_ = Passing::kEvaluation;  // Made, whatever interrupts what follows.
  finish();
}

void ZoEngine::finish() {
  if (passing_ == Passing::kNone) return;
  if (ring_) ring_->finish();
  passing_ = Passing::kNone;
}

// ---- Mode log -----------------------------------------------------------------------------------

void ZoEngine::rollback(std::uint64_t step) {
  LoggedValues& values = logged("rollback");
  finish();
  values.rollback(step);
}

void ZoEngine::restore(std::uint64_t entries) {
  LoggedValues& values = logged("restore");
  finish();
  values.restore(entries);
}

void ZoEngine::consolidate(const ZoArena::Consolidation& how) {
  LoggedValues& values = logged("consolidate");
  values.check_consolidates();
  check_between("consolidate");
  ring_.reset();
  values.consolidate(how);
  need_ring();
}

std::vector<double> ZoEngine::gammas() const {
  return sluiceway::gammas(log().history(), log().base(), next_step());
}

LowRankUpdates& ZoEngine::low_rank(StreamRef compute) {
  LowRankUpdates* const factors = logged("low_rank").low_rank();
  SLUICEWAY_CHECK(factors != nullptr,
                  "zo engine: low_rank() needs noise of "
                  "low rank, but the noise is elementwise");
  catch_up();
  note(compute);
  return *factors;
}

void ZoEngine::note(StreamRef compute) {
  std::erase(computes_, compute);
  computes_.push_back(compute);
}

void ZoEngine::catch_up() {
  LowRankUpdates* const factors = logged_->low_rank();
  if (factors == nullptr || factors->is_at(log())) return;
  finish();  // The ring may have been interrupted behind the commit.
  factors->follow(log(), computes_);
  computes_.erase(computes_.begin(), computes_.end() - 1);
}

void ZoEngine::make_room() {
  if (!logged_ || logged_->low_rank() == nullptr) return;
  try {
    logged_->low_rank()->prepare(next_step(), computes_);
  } catch (const OutOfMemory&) {
    if (!give_way(next_step())) throw;
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
    logged_->low_rank()->prepare(step, computes_);
    need_ring();
    return true;
  } catch (const OutOfMemory&) {  // Without any, too.
    logged_->low_rank()->let_go();
    catch_up();
    need_ring();
    return false;
  }
}

// ---- Mode write_back ----------------------------------------------------------------------------

void ZoEngine::hold(std::vector<StreamedWeight> weights) {
  HostMasters& all = masters("hold");
  SLUICEWAY_CHECK(all.size() == 0, "hold: ", all.size(),
                  " weights are held already; call hold() once");
  all.hold(std::move(weights));
  streamed_.assign(all.size(), false);
}

// By use; with images, these stand for the masters of the uses.
std::vector<std::size_t> ZoEngine::masters_of(std::vector<StreamedWeight>& uses) const {
  std::vector<std::size_t> master;
  std::vector<bool> keep(masters_->size());  // A master that is kept in any of its uses stays.
  for (const int use : first_uses(uses)) {
    master.push_back(masters_->index_of(uses[static_cast<std::size_t>(use)]));
  }
  for (std::size_t i = 0; i < uses.size(); ++i) {
    if (uses[i].keep) keep[master[i]] = true;
  }
  for (std::size_t i = 0; images_ && i < uses.size(); ++i) {
    uses[i].keep = keep[master[i]];
    images_->stand_for(uses[i], master[i]);
  }
  return master;
}

ZoUpdates ZoEngine::written_step(std::span<const float> g, std::span<const StepRate> rates) const {
  const std::uint32_t directions = shape_.directions;
  SLUICEWAY_CHECK(g.size() == directions && rates.size() == shape_.groups, "commit: ", g.size(),
                  " gradients and ", rates.size(), " rates, expected ", directions, " and ",
                  shape_.groups);
  ZoUpdates step;
  for (std::uint32_t d = 0; d < directions; ++d) step.records.push_back({noise(d), {}});
  for (const StepRate& rate : rates) {
    const double gamma = decay_factor(rate.lr, rate.weight_decay);
    step.gamma.push_back(gamma_as_float(gamma));
    for (std::uint32_t d = 0; d < directions; ++d) {
      step.records[d].scale.push_back(update_scale(rate.lr, g[d], directions, gamma));
    }
  }
  return step;
}

void ZoEngine::catch_up_unstreamed() {
  for (std::size_t i = 0; i < masters_->size(); ++i) {
    if (streamed_[i]) continue;
    if (const auto snapshot = masters_->snapshot(); snapshot && snapshot->step() < next_step()) {
      wait_until(
          [&](std::chrono::milliseconds most) { return snapshot->wait_until_read(i, most); });
    }
    masters_->catch_up(i);
  }
}

void ZoEngine::flush() {
  HostMasters& all = masters("flush");
  check_between("flush");
  finish_snapshot();
  if (ring_) ring_->flush(work());
  for (std::size_t i = 0; i < all.size(); ++i) all.catch_up(i);
}

// Without finish(): whatever has failed, or is acquired, is of the ring that goes.
void ZoEngine::restart(std::uint64_t step) {
  HostMasters& all = masters("restart");
  fail_snapshot(std::make_exception_ptr(
      Error(concat("snapshot: other code has set the weights to step ", step, " meanwhile"))));
  ring_.reset();
  passing_ = Passing::kNone;
  all.restart(step);
}

std::shared_ptr<MasterSnapshot> ZoEngine::begin_snapshot() {
  HostMasters& all = masters("begin_snapshot");
  check_between("begin_snapshot");
  if (ring_) ring_->check_lanes();
  std::shared_ptr<MasterSnapshot> snapshot = all.begin_snapshot();
  try {
    if (ring_) ring_->copy_residents_back(work());
  } catch (...) {
    fail_snapshot(std::current_exception());
    throw;
  }
  return snapshot;
}

bool ZoEngine::finish_snapshot(std::optional<std::chrono::milliseconds> most) {
  const std::shared_ptr<MasterSnapshot> snapshot = masters("finish_snapshot").snapshot();
  if (!snapshot) return true;
  if (snapshot->is_read() && !snapshot->has_failed()) return true;
  check_lanes();
  if (snapshot->is_read()) return true;
  check_between("finish_snapshot");
  land_snapshot();
  const bool is_read = wait_until(
      [&](std::chrono::milliseconds at_most) { return snapshot->wait_until_read(at_most); }, most);
  if (snapshot->has_failed()) check_lanes();
  return is_read;
}

void ZoEngine::drop_snapshot() noexcept {
  if (!masters_) return;
  if (const auto snapshot = masters_->snapshot()) snapshot->let_go_of_all();
}

// S2. What passes have brought up is on its way already.
void ZoEngine::land_snapshot() {
  const std::shared_ptr<MasterSnapshot> snapshot = masters_->snapshot();
  if (!snapshot || snapshot->is_read() || snapshot->step() != next_step()) return;
  try {
    if (ring_) ring_->catch_up();
    for (std::size_t i = 0; i < masters_->size(); ++i) {
      if (masters_->step_of(i) != snapshot->step()) masters_->catch_up(i);
    }
  } catch (...) {
    fail_snapshot(std::current_exception());
    throw;
  }
}

bool ZoEngine::wait_until(const IsRead& is_read, std::optional<std::chrono::milliseconds> most) {
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
void ZoEngine::check_lanes() {
  try {
    if (ring_) ring_->check_lanes();
  } catch (...) {
    fail_snapshot(std::current_exception());
    throw;
  }
}

void ZoEngine::fail_snapshot(std::exception_ptr error) noexcept {
  if (!masters_) return;
  if (const auto snapshot = masters_->snapshot()) snapshot->fail(std::move(error));
}

}  // namespace sluiceway
