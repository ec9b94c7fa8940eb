// Turns gathered gradients into a step: of every chunk that has one, or of none.
#include <algorithm>
#include <cmath>
#include <limits>
#include <string>
#include <utility>

#include "kernels/base/check.h"
#include "runtime/engine/offload/offload_engine.h"
#include "runtime/engine/offload/offload_lanes.h"

namespace sluiceway {

using offload_lanes::kD2h, offload_lanes::kH2d;

void OffloadEngine::check_request(const OffloadRequest& request) const {
  SLUICEWAY_CHECK(
      request.hyper.size() == tensors_.size() && request.tensors.size() == tensors_.size(),
      "OffloadEngine: step() got ", request.hyper.size(), " hyperparameters and ",
      request.tensors.size(), " tensors, expected ", tensors_.size(), " of each");
  check_weights("step", request.tensors, false);
}

StepOutcome OffloadEngine::step(const OffloadRequest& request) {
  check_begun("step");
  check_request(request);
  end_pass();
  compute_.move_to_step(request.compute);
  cores_.send_all();
  end_backward(request.norm || options_.gate.max_norm > 0);
  const StepOutcome outcome = decide(request);
  if (outcome.skipped) {
    drop();
    speculation_.forget_expected();
    return outcome;
  }
  spill_.wait_written();
  const float factor = request.factor * outcome.clip_factor;
  const bool came_true = settle(request, factor);
  reached_ = exit_.reached();
  for (std::size_t i = 0; i < tensors_.size(); ++i) {
    if (gate_.backwards(static_cast<int>(i)) > 0) ++steps_[i];
  }
  for (std::size_t c = 0; c < plan_.chunks().size(); ++c) {
    const int chunk = static_cast<int>(c);
    if (speculation_.is_staged(chunk)) {
      send_staged(chunk, request);
    } else if (extents(chunk) > 0 || cores_.feeds(chunk)) {
      send(chunk, request, factor);
    }
  }
  if (has_gradient()) {
    speculation_.note_step(came_true);
    note_uncommitted(true);
  }
  speculation_.forget_expected();
  gate_.commit(request.factor);
  clear_gradients();
  if (fetch_ != nullptr) fetch_->begin();
  return outcome;
}

StepOutcome OffloadEngine::decide(const OffloadRequest& request) {
  // A sum without a requested norm has none, but its addends are known to be finite.
  bool known = true;
  for (std::size_t i = 0; i < tensors_.size(); ++i) {
    const int index = static_cast<int>(i);
    ScanResult scan = gate_.scan(index);
    if (gate_.backwards(index) == 0 || !scan.finite || !std::isnan(scan.sum_squares)) continue;
    known = false;
    scan.sum_squares = 0;
    gate_.note_scan(index, scan);
  }
  StepOutcome outcome =
      gate_.decide(request.factor, request.other_sum_squares, request.own_factors);
  if (!known) outcome.grad_norm = std::numeric_limits<double>::quiet_NaN();
  return outcome;
}

// Returns whether the step is as expected; marks staged updates that differ to be made again.
bool OffloadEngine::settle(const OffloadRequest& request, float factor) {
  bool came_true = true;
  for (std::size_t c = 0; speculation_.expects() && c < plan_.chunks().size(); ++c) {
    const int chunk = static_cast<int>(c);
    for (const ChunkPiece& piece : plan_.chunks()[c].pieces) {
      if (gate_.backwards(piece.tensor) == 0) continue;
      const float own = request.own_factors.empty() ? 1 : request.own_factors[at(piece.tensor)];
      const std::string differs =
          speculation_.difference(piece.tensor, request.hyper[at(piece.tensor)], factor * own);
      if (differs.empty()) continue;
      came_true = false;
      if (!speculation_.is_staged(chunk) || speculation_.give_up(chunk)) continue;
      drop();
      speculation_.forget_expected();
      throw InvalidArgument(concat("OffloadEngine: step() of ", tensor(piece.tensor).name, " with ",
                                   differs,
                                   " from expect(), which its update has used already; the "
                                   "gradients were dropped and nothing has changed; clip with "
                                   "max_norm=, keep gradients with redo=, or use policy=spill"));
    }
  }
  return came_true;
}

int OffloadEngine::extents(int chunk) const {
  return std::max(spill_.extents(chunk), cores_.extents(chunk));
}

std::vector<PieceUpdate> OffloadEngine::updates_of(int chunk, const OffloadRequest& request,
                                                   float factor) const {
  std::vector<PieceUpdate> updates;
  for (const ChunkPiece& piece : plan_.chunks()[at(chunk)].pieces) {
    const std::size_t tensor = at(piece.tensor);
    const float own = request.own_factors.empty() ? 1 : request.own_factors[tensor];
    updates.push_back({request.hyper[tensor].at_step(std::max<std::int64_t>(1, steps_[tensor])),
                       factor * own, gate_.backwards(piece.tensor) > 0});
  }
  return updates;
}

// Copies the weights of a chunk to the device, after the work that may still read them there.
ChunkUpdate::Emit OffloadEngine::emit_to(int chunk, const OffloadRequest& request) {
  std::vector<void*> targets;
  for (const ChunkPiece& piece : plan_.chunks()[at(chunk)].pieces) {
    const AnyMatrix& tensor = request.tensors[at(piece.tensor)];
    targets.push_back(static_cast<std::byte*>(tensor.data) +
                      static_cast<std::size_t>(piece.first) * size_bytes(tensor.dtype));
  }
  return [this, chunk, targets, reached = reached_](
             const ChunkPiece& piece, std::span<const std::byte> bytes, StreamRef stream) {
    const auto& pieces = plan_.chunks()[at(chunk)].pieces;
    const auto p = static_cast<std::size_t>(&piece - pieces.data());
    enqueue_wait(stream, reached);
    lanes_.h2d().copy(targets[p], bytes.data(), bytes.size(), stream);
  };
}

void OffloadEngine::send(int chunk, const OffloadRequest& request, float factor) {
  ChunkUpdate update;
  update.pieces = updates_of(chunk, request, factor);
  if (!is_chunk_away(chunk)) update.emit = emit_to(chunk, request);
  update.extents = extents(chunk);
  GradientCores::Feed feed;
  if (cores_.feeds(chunk)) feed = cores_.feed(chunk);
  update.fill = std::move(feed.fill);
  Payload payload = stream_.update(chunk, std::move(update));
  if (feed.cross) {
    payload.hops.insert(
        payload.hops.begin(),
        {kD2h, [cross = std::move(feed.cross)](StreamRef) { cross(); }, {}, feed.bytes});
  }
  submit(chunk, std::move(payload));
}

// Finishes a step that was staged: its weights are parked, or are made from the staged masters.
void OffloadEngine::send_staged(int chunk, const OffloadRequest& request) {
  if (is_chunk_away(chunk)) return;  // Its weight is staged, too.
  ChunkUpdate update;
  update.pieces = updates_of(chunk, request, 1);
  update.emit = emit_to(chunk, request);
  if (!park_.has_room(chunk)) {
    return submit(chunk, stream_.emit_staged(chunk, std::move(update)));
  }
  Payload payload;
  payload.name = concat("weights of chunk ", chunk);
  const auto emit = [this, chunk, update = std::move(update)](StreamRef stream) {
    const std::vector<ChunkPiece>& pieces = plan_.chunks()[at(chunk)].pieces;
    for (std::size_t p = 0; p < pieces.size(); ++p) {
      if (update.pieces[p].has_gradient) update.emit(pieces[p], park_.of(chunk, p), stream);
    }
  };
  payload.hops = {{kH2d, emit}};
  submit(chunk, std::move(payload));
}

void OffloadEngine::submit(int chunk, Payload payload) {
  const int group = groups_.of_chunk(chunk);
  payload.key = groups_.update(group);
  payload.deadline = static_cast<std::uint64_t>(group);
  lanes_.executor().submit(std::move(payload));
}

}  // namespace sluiceway
