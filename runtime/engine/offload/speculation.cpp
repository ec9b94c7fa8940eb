#include "runtime/engine/offload/speculation.h"

#include <algorithm>
#include <utility>

#include "kernels/base/check.h"
#include "runtime/engine/offload/offload_lanes.h"

namespace sluiceway {

Speculation::Speculation(EngineLanes& lanes, StateStream& stream, GradientCores& cores,
                         const ChunkPlan& plan, const ChunkGroups& groups, const WeightPark& park,
                         Options options)
    : lanes_(lanes),
      stream_(stream),
      cores_(cores),
      plan_(plan),
      groups_(groups),
      park_(park),
      options_(options),
      chunks_(plan.chunks().size()) {}

void Speculation::expect(std::span<const TensorHyper> hyper, float factor) {
  const auto tensors = static_cast<std::size_t>(groups_.tensor_count());
  SLUICEWAY_CHECK(hyper.size() == tensors, "OffloadEngine: expect() got ", hyper.size(),
                  " hyperparameters, expected ", tensors);
  expected_ = Expected{{hyper.begin(), hyper.end()}, factor};
}

// ---- While a step's gradient is gathered --------------------------------------------------------

void Speculation::begin_step(std::span<const std::int64_t> steps) {
  steps_.assign(steps.begin(), steps.end());
  active_ = options_.on && options_.promised_backwards > 0 && expected_ && redos_.allow();
}

bool Speculation::takes(int chunk) const {
  return active_ && options_.promised_backwards == 1 && chunks_.at(at(chunk)) == Chunk::kUntouched;
}

bool Speculation::takes_core(int tensor) const {
  return active_ && chunks_.at(at(plan_.of_tensor(tensor).front())) == Chunk::kUntouched;
}

ChunkUpdate Speculation::update_of(int chunk, const std::vector<bool>& has) const {
  ChunkUpdate update;
  update.extents = 0;
  const std::vector<ChunkPiece>& pieces = plan_.chunks()[at(chunk)].pieces;
  for (std::size_t p = 0; p < pieces.size(); ++p) {
    const std::size_t tensor = at(pieces[p].tensor);
    update.pieces.push_back(
        {expected_->hyper[tensor].at_step(steps_[tensor] + 1), expected_->factor, has[p]});
  }
  if (park_.has_room(chunk)) {
    update.keep = [this, chunk, &pieces](const ChunkPiece& piece, std::span<const std::byte> bytes,
                                         StreamRef) {
      const auto p = static_cast<std::size_t>(&piece - pieces.data());
      std::ranges::copy(bytes, park_.of(chunk, p).begin());
    };
  }
  return update;
}

void Speculation::submit(int chunk, StateStream::Leave leave, std::uint64_t bytes,
                         ChunkUpdate update) {
  Payload payload =
      stream_.stage(chunk, {offload_lanes::kD2h, std::move(leave), bytes}, std::move(update));
  payload.key = groups_.spill(groups_.of_chunk(chunk));
  payload.deadline = offload_lanes::kAsTheyCame;
  chunks_[at(chunk)] = Chunk::kStaged;
  lanes_.executor().submit(std::move(payload));
}

void Speculation::stage(int chunk, StateStream::Leave leave, std::uint64_t bytes) {
  ChunkUpdate update = update_of(chunk, {true});
  update.spills = options_.keeps_gradients;
  submit(chunk, std::move(leave), bytes, std::move(update));
}

void Speculation::stage_gathered(int chunk, std::span<std::byte> gradient,
                                 const std::vector<bool>& has) {
  ChunkUpdate update = update_of(chunk, has);
  update.gathered = gradient;
  update.spills = options_.keeps_gradients;
  submit(chunk, {}, 0, std::move(update));
}

void Speculation::stage_core(int tensor) {
  for (const int chunk : plan_.of_tensor(tensor)) {
    GradientCores::Feed feed = cores_.feed(chunk);
    ChunkUpdate update = update_of(chunk, {true});
    update.fill = std::move(feed.fill);
    const auto leave = [cross = std::move(feed.cross)](std::span<std::byte>) { cross(); };
    submit(chunk, leave, feed.bytes, std::move(update));
  }
}

bool Speculation::can_redo(int chunk) const {
  return options_.keeps_gradients || cores_.feeds(chunk);
}

void Speculation::outdate(int tensor, const std::string& name) {
  const std::span<const int> chunks = plan_.of_tensor(tensor);
  for (const int chunk : chunks) {
    SLUICEWAY_CHECK(
        !is_staged(chunk) || can_redo(chunk), "OffloadEngine: got a second gradient of ", name,
        ", or of one that shares its chunk, in a step that promised ", options_.promised_backwards,
        " backward, and the first was not kept; set accumulate= to the number of backwards, or use "
        "policy=spill");
  }
  for (const int chunk : chunks) {
    if (is_staged(chunk)) chunks_[at(chunk)] = Chunk::kOutdated;
  }
}

// ---- The step -----------------------------------------------------------------------------------

bool Speculation::has_staged() const noexcept {
  return std::ranges::any_of(chunks_, [](Chunk chunk) { return chunk != Chunk::kUntouched; });
}

std::string Speculation::difference(int tensor, const TensorHyper& hyper, float factor) const {
  const TensorHyper& expected = expected_->hyper[at(tensor)];
  if (factor != expected_->factor) {
    return concat("factor ", factor, ", clipping included, expected ", expected_->factor);
  }
  if (hyper == expected) return "";
  const auto one = [](const char* name, double found, double wanted) {
    return found == wanted ? std::string() : concat(name, " ", found, ", expected ", wanted);
  };
  for (const std::string& text :
       {one("lr", hyper.lr, expected.lr), one("beta1", hyper.beta1, expected.beta1),
        one("beta2", hyper.beta2, expected.beta2), one("eps", hyper.eps, expected.eps)}) {
    if (!text.empty()) return text;
  }
  return one("weight_decay", hyper.weight_decay, expected.weight_decay);
}

bool Speculation::give_up(int chunk) {
  if (!can_redo(chunk)) return false;
  chunks_[at(chunk)] = Chunk::kOutdated;
  return true;
}

void Speculation::note_step(bool came_true) {
  if (!options_.on) return;
  if (!has_staged()) {
    ++counts_.fallen_back;
    if (!redos_.allow() && expected_) redos_.note(came_true);
    return;
  }
  const bool redone = std::ranges::find(chunks_, Chunk::kOutdated) != chunks_.end();
  ++(redone ? counts_.redone : counts_.speculative);
  redos_.note(!redone);
}

void Speculation::clear() {
  std::ranges::fill(chunks_, Chunk::kUntouched);
  active_ = false;
}

}  // namespace sluiceway
