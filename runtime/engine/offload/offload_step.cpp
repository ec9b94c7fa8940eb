// What becomes of a gathered gradient: a step of every chunk that has one, or of none.
#include <algorithm>
#include <cmath>
#include <limits>
#include <utility>

#include "kernels/base/check.h"
#include "runtime/engine/offload/offload_engine.h"
#include "runtime/engine/offload/offload_lanes.h"

namespace sluiceway {

using offload_lanes::kD2h;

void OffloadEngine::check_request(const OffloadRequest& request) const {
  SLUICEWAY_CHECK(
      request.hyper.size() == tensors_.size() && request.tensors.size() == tensors_.size(),
      "OffloadEngine: step with ", request.hyper.size(), " hyperparameters and ",
      request.tensors.size(), " tensors, expected ", tensors_.size(), " of each");
  check_weights("step", request.tensors);
}

StepOutcome OffloadEngine::step(const OffloadRequest& request) {
  check_begun("step");
  check_request(request);
  cores_.send_all();
  end_backward(request.norm || options_.gate.max_norm > 0);
  // A sum that nobody asked for has no norm; that its addends are finite is known.
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
  if (outcome.skipped) {
    drop();
    return outcome;
  }
  spill_.wait_written();
  for (std::size_t i = 0; i < tensors_.size(); ++i) {
    if (gate_.backwards(static_cast<int>(i)) > 0) ++steps_[i];
  }
  for (std::size_t c = 0; c < plan_.chunks().size(); ++c) {
    const int chunk = static_cast<int>(c);
    if (extents(chunk) > 0 || cores_.feeds(chunk))
      send(chunk, request, request.factor * outcome.clip_factor);
  }
  uncommitted_ = gate_.has_gradient() || uncommitted_;
  gate_.commit(request.factor);
  clear_gradients();
  return outcome;
}

int OffloadEngine::extents(int chunk) const {
  return std::max(spill_.extents(chunk), cores_.extents(chunk));
}

PieceUpdate OffloadEngine::update_of(const ChunkPiece& piece, const TensorHyper& hyper,
                                     float factor) const {
  return {{hyper.lr, hyper.beta1, hyper.beta2, hyper.eps, hyper.weight_decay,
           std::max<std::int64_t>(1, steps_[at(piece.tensor)])},
          factor,
          gate_.backwards(piece.tensor) > 0};
}

// To where the weights of a chunk are on the device.
ChunkUpdate::Emit OffloadEngine::emit_to(int chunk, const OffloadRequest& request) {
  std::vector<void*> targets;
  for (const ChunkPiece& piece : plan_.chunks()[at(chunk)].pieces) {
    const AnyMatrix& tensor = request.tensors[at(piece.tensor)];
    targets.push_back(static_cast<std::byte*>(tensor.data) +
                      static_cast<std::size_t>(piece.first) * size_bytes(tensor.dtype));
  }
  return [this, chunk, targets](const ChunkPiece& piece, std::span<const std::byte> bytes,
                                StreamRef stream) {
    const auto& pieces = plan_.chunks()[at(chunk)].pieces;
    const auto p = static_cast<std::size_t>(&piece - pieces.data());
    lanes_.h2d().copy(targets[p], bytes.data(), bytes.size(), stream);
  };
}

void OffloadEngine::send(int chunk, const OffloadRequest& request, float factor) {
  ChunkUpdate update;
  for (const ChunkPiece& piece : plan_.chunks()[at(chunk)].pieces) {
    const float own = request.own_factors.empty() ? 1 : request.own_factors[at(piece.tensor)];
    update.pieces.push_back(update_of(piece, request.hyper[at(piece.tensor)], factor * own));
  }
  update.emit = emit_to(chunk, request);
  update.extents = extents(chunk);
  GradientCores::Feed feed;
  if (cores_.feeds(chunk)) feed = cores_.feed(chunk);
  update.fill = std::move(feed.fill);
  Payload payload = stream_.update(chunk, std::move(update));
  if (feed.cross) {
    payload.hops.insert(payload.hops.begin(), {kD2h, std::move(feed.cross), {}, feed.bytes});
  }
  const int group = groups_.of_chunk(chunk);
  payload.key = groups_.update(group);
  payload.deadline = static_cast<std::uint64_t>(group);
  lanes_.executor().submit(std::move(payload));
}

}  // namespace sluiceway
