#include "runtime/engine/zo/host_masters.h"

#include <algorithm>
#include <utility>

#include "kernels/base/check.h"
#include "kernels/base/elements.h"
#include "kernels/base/error.h"
#include "kernels/fp8_image.h"
#include "kernels/perturb.h"

namespace sluiceway {
namespace {

// Ranges begin at whole units of every noise, so no bit is drawn twice.
static_assert(kFp8Tile % noise_unit(NoiseFamily::kRademacher) == 0);
constexpr std::uint64_t kPart = 8 * kFp8Tile;  // Elements that are in the cache when `act` reads.

std::shared_ptr<WrittenSteps> none_from(std::uint64_t step, std::uint64_t run_seed,
                                        NoiseFamily family) {
  auto steps = std::make_shared<WrittenSteps>();
  steps->run_seed = run_seed;
  steps->family = family;
  steps->first = step;
  return steps;
}

}  // namespace

HostMasters::HostMasters(const Options& options)
    : run_seed_(options.run_seed),
      family_(options.family),
      team_(options.threads),
      steps_(none_from(options.step, run_seed_, family_)),
      lacked_from_(options.step) {}

void HostMasters::hold(std::vector<StreamedWeight> weights) {
  std::map<const void*, std::size_t> by_memory;
  for (std::size_t i = 0; i < weights.size(); ++i) {
    const StreamedWeight& weight = weights[i];
    SLUICEWAY_CHECK(weight.host != nullptr && weight.elements > 0, "masters: ", weight.name,
                    " has ", weight.elements, " elements at ", weight.host,
                    ", expected 1 or more elements in host memory");
    SLUICEWAY_CHECK(weight.dtype() != DType::kF16, "masters: ", weight.name,
                    " is of f16, expected f32 or bf16 (stochastic rounding)");
    SLUICEWAY_CHECK(by_memory.emplace(weight.host, i).second, "masters: ", weight.name,
                    " shares its memory with another weight; pass each weight once");
  }
  weights_ = std::move(weights);
  by_memory_ = std::move(by_memory);
  const std::uint64_t step = next_step();
  const std::lock_guard lock(mutex_);
  step_of_.assign(weights_.size(), step);
  lacks_from_ = landed_ = step_of_;
}

std::size_t HostMasters::index_of(const StreamedWeight& use) const {
  const auto found = by_memory_.find(use.host);
  SLUICEWAY_CHECK(found != by_memory_.end(), "masters: ", use.name, " is at ", use.host,
                  ", which is not the memory of any of the ", weights_.size(), " trained weights");
  const StreamedWeight& weight = weights_[found->second];
  SLUICEWAY_CHECK(weight.elements == use.elements && weight.dtype() == use.dtype() &&
                      weight.group == use.group && weight.name == use.name,
                  "masters: ", use.name, " is ", use.elements, " ", to_string(use.dtype()),
                  " elements of group ", use.group, ", expected ", weight.name, " of ",
                  weight.elements, " ", to_string(weight.dtype()), " in group ", weight.group);
  return found->second;
}

std::shared_ptr<const WrittenSteps> HostMasters::steps() const {
  const std::lock_guard lock(mutex_);
  return steps_;
}

std::uint64_t HostMasters::step_of(std::size_t index) const {
  const std::lock_guard lock(mutex_);
  return step_of_.at(index);
}

void HostMasters::expect(std::size_t index, std::uint64_t step) {
  const std::lock_guard lock(mutex_);
  step_of_.at(index) = lacks_from_.at(index) = step;
}

void HostMasters::land(std::size_t index, std::uint64_t step) noexcept {
  const std::lock_guard lock(mutex_);
  landed_[index] = step;
  if (snapshot_ && snapshot_->step() == step) snapshot_->land(index);
}

// Without the mutex: whoever is told may destroy what lands here, too.
void HostMasters::drop(std::size_t index, std::uint64_t step) noexcept {
  const std::shared_ptr<MasterSnapshot> read = snapshot();
  if (!read || read->step() != step) return;
  read->fail(std::make_exception_ptr(not_back(index, step)));
}

Error HostMasters::not_back(std::size_t index, std::uint64_t step) const {
  return Error(concat("masters: ", weights_[index].name, " of step ", step,
                      " has not returned to host memory; resume from a save"));
}

void HostMasters::set_copy_step(std::size_t index, std::uint64_t step) {
  const std::lock_guard lock(mutex_);
  lacks_from_.at(index) = step;
}

void HostMasters::append(ZoUpdates step) {
  SLUICEWAY_CHECK(step.records.size() <= kMaxPending, "masters: a step of ", step.records.size(),
                  " directions, expected at most ", kMaxPending);
  const std::lock_guard lock(mutex_);
  const auto least = std::min_element(lacks_from_.begin(), lacks_from_.end());
  const std::uint64_t first =
      std::exchange(lacked_from_, least == lacks_from_.end() ? steps_->next() : *least);
  auto steps = none_from(first, run_seed_, family_);
  steps->steps.assign(steps_->steps.begin() + static_cast<std::ptrdiff_t>(first - steps_->first),
                      steps_->steps.end());
  steps->steps.push_back(std::make_shared<const ZoUpdates>(std::move(step)));
  steps_ = std::move(steps);
}

void HostMasters::restart(std::uint64_t step) {
  const std::lock_guard lock(mutex_);
  steps_ = none_from(step, run_seed_, family_);
  step_of_.assign(weights_.size(), step);
  lacks_from_ = landed_ = step_of_;
  lacked_from_ = step;
}

std::shared_ptr<MasterSnapshot> HostMasters::begin_snapshot() {
  const std::lock_guard lock(mutex_);
  SLUICEWAY_CHECK(!snapshot_ || snapshot_->is_read(), "masters: the snapshot of step ",
                  snapshot_->step(), " is still being read; wait for it before the next snapshot");
  snapshot_ = std::make_shared<MasterSnapshot>(steps_->next(), weights_.size());
  for (std::size_t i = 0; i < weights_.size(); ++i) {
    if (landed_[i] == snapshot_->step()) snapshot_->land(i);
  }
  return snapshot_;
}

std::shared_ptr<MasterSnapshot> HostMasters::snapshot() const noexcept {
  const std::lock_guard lock(mutex_);
  return snapshot_;
}

Event HostMasters::may_be_written(std::size_t index, std::uint64_t step) const {
  const std::lock_guard lock(mutex_);
  if (!snapshot_ || snapshot_->step() >= step) return {};
  return snapshot_->read(index);
}

std::byte* HostMasters::data(std::size_t index) const {
  return static_cast<std::byte*>(const_cast<void*>(weights_.at(index).host));
}

void HostMasters::catch_up(std::size_t index, const Act& act) {
  std::unique_lock one_by_one(catching_up_);
  std::shared_ptr<const WrittenSteps> steps = this->steps();
  // Others are caught up meanwhile: those that the reader still waits for may be among them.
  for (Event free; free = may_be_written(index, steps->next()), !free.happened();) {
    one_by_one.unlock();
    free.wait();
    one_by_one.lock();
    steps = this->steps();
  }
  const std::uint64_t from = step_of(index);
  if (from == steps->next() && !act) return;
  const StreamedWeight& weight = weights_[index];
  check_landed(index, from);
  const std::uint64_t width = size_bytes(weight.dtype());
  team_.run(static_cast<std::uint64_t>(weight.elements), kFp8Tile,
            [&](std::uint64_t begin, std::uint64_t end) {
              for (std::uint64_t at = begin; at < end; at += kPart) {
                const std::uint64_t until = std::min(at + kPart, end);
                write_steps(*steps, weight, at, {data(index) + at * width, (until - at) * width},
                            from, StreamRef::host());
                if (act) act(at, until);
              }
            });
  expect(index, steps->next());
  land(index, steps->next());
}

void HostMasters::check_landed(std::size_t index, std::uint64_t step) const {
  const std::lock_guard lock(mutex_);
  if (landed_[index] == step) return;
  throw not_back(index, step);
}

MasterImages::MasterImages(HostMasters& masters, WeightForm wire)
    : masters_(masters), wire_(wire), worker_({"zo images", -1}) {
  SLUICEWAY_CHECK(wire != WeightForm(DType::kF32), "master images: the link's form is ",
                  to_string(wire), ", expected a form of 16 bits, or fp8");
}

void MasterImages::stand_for(StreamedWeight& use, std::size_t master) const {
  if (use.keep || use.dtype() != DType::kF32) return;
  use.computed = use.copy_dtype();
  use.form = wire_;
  use.host = nullptr;
  use.source = static_cast<int>(master);
}

std::uint64_t MasterImages::read_bytes(std::size_t weight) const {
  return wire_.bytes(static_cast<std::uint64_t>(masters_.weight(weight).elements));
}

void MasterImages::read(std::size_t weight, std::span<std::byte> into, Done done) {
  worker_.post([this, weight, into, done = std::move(done)] {
    std::exception_ptr error;
    try {
      make(weight, into);
    } catch (...) {
      error = std::current_exception();
    }
    done(error);
  });
}

void MasterImages::make(std::size_t weight, std::span<std::byte> into) {
  masters_.catch_up(weight, [&](std::uint64_t begin, std::uint64_t end) {
    const std::span master(masters_.data(weight) + begin * sizeof(float),
                           (end - begin) * sizeof(float));
    const std::span image = into.subspan(wire_.bytes(begin), wire_.bytes(end - begin));
    if (wire_.is_fp8_image()) {
      return cpu::make_fp8_image(elements<float>(master), image);
    }
    cpu::materialise(master, DType::kF32, image, wire_.dtype(), {});
  });
}

}  // namespace sluiceway
