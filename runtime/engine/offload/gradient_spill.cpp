#include "runtime/engine/offload/gradient_spill.h"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstring>
#include <limits>
#include <utility>

#include "kernels/base/check.h"
#include "runtime/engine/offload/offload_lanes.h"

namespace sluiceway {
namespace {

using offload_lanes::kAsTheyCame, offload_lanes::kD2h, offload_lanes::kSpill;

constexpr std::chrono::hours kWaitLimit{24};  // For room in the ring; the executor has its own.

bool is_shared(const PlannedChunk& chunk) { return chunk.pieces.size() > 1; }

std::size_t extent_bytes(const PlannedChunk& chunk, DType gradient) {
  return static_cast<std::size_t>(chunk.stored_elems) * size_bytes(gradient);
}

// Returns the part of a chunk's memory that belongs to a piece.
std::span<std::byte> part(std::span<std::byte> chunk, const ChunkPiece& piece, DType gradient) {
  const std::size_t width = size_bytes(gradient);
  return chunk.subspan(static_cast<std::size_t>(piece.at) * width,
                       static_cast<std::size_t>(piece.elems) * width);
}

}  // namespace

GradientSpill::GradientSpill(EngineLanes& lanes, std::vector<Extents> stores, PinnedPool& ring,
                             const ChunkPlan& plan, const ChunkGroups& groups, StateStream& stream,
                             Speculation& speculation, GradientExit& exit, DType gradient)
    : lanes_(lanes),
      stores_(std::move(stores)),
      ring_(ring),
      plan_(plan),
      groups_(groups),
      stream_(stream),
      speculation_(speculation),
      exit_(exit),
      gradient_(gradient),
      chunks_(plan.chunks().size()),
      backwards_(at(groups.tensor_count())) {
  for (std::size_t c = 0; c < chunks_.size(); ++c) {
    const PlannedChunk& chunk = plan.chunks()[c];
    chunks_[c].scans.resize(chunk.pieces.size());
    chunks_[c].sums.resize(chunk.pieces.size());
    chunks_[c].arrived.resize(chunk.pieces.size());
    if (!is_shared(chunk)) continue;
    chunks_[c].buffer.emplace(lanes.budget(), Tier::kPinned, lanes.device(),
                              extent_bytes(chunk, gradient), "gradients of small tensors");
  }
}

std::uint64_t GradientSpill::shared_bytes(const ChunkPlan& plan, DType gradient) {
  std::uint64_t bytes = 0;
  for (const PlannedChunk& chunk : plan.chunks()) {
    if (is_shared(chunk)) bytes += extent_bytes(chunk, gradient);
  }
  return bytes;
}

// ---- Gradients come -----------------------------------------------------------------------------

void GradientSpill::add(int tensor, const AnyMatrix& g, const Event& there,
                        const std::shared_ptr<const void>& keep, std::uint64_t room) {
  const std::size_t width = size_bytes(g.dtype);
  const std::span<const std::byte> whole(static_cast<const std::byte*>(g.data),
                                         static_cast<std::size_t>(g.rows * g.cols) * width);
  const std::span<const int> chunks = plan_.of_tensor(tensor);
  for (const int chunk : chunks) make_room(chunk);
  for (const int chunk : chunks) {
    const std::vector<ChunkPiece>& pieces = planned(chunk).pieces;
    const auto piece = std::ranges::find(pieces, tensor, &ChunkPiece::tensor);
    Source from{whole.subspan(static_cast<std::size_t>(piece->first) * width,
                              static_cast<std::size_t>(piece->elems) * width),
                g.dtype, there, keep};
    if (chunks_[at(chunk)].buffer) {
      add_shared(chunk, static_cast<std::size_t>(piece - pieces.begin()), std::move(from));
    } else {
      add_alone(chunk, std::move(from));
    }
  }
  ++backwards_[at(tensor)];
  waiting_.push_back({groups_.spill(groups_.of_tensor(tensor)), whole.size()});
  waiting_bytes_ += whole.size();
  while (waiting_bytes_ > room) {
    lanes_.wait(waiting_.front().key);
    waiting_bytes_ -= waiting_.front().bytes;
    waiting_.pop_front();
  }
}

// Call before a new extent for which a store may have no slot; waits until no request is in flight.
// A shared chunk that is being gathered has no extent yet.
void GradientSpill::make_room(int chunk) {
  const int needed = chunks_[at(chunk)].extents + 1;
  stream_.check_ring(chunk, needed);
  for (const Extents& of : stores_) {
    const auto slots = of.store.layout().regions[StateStream::kGradientRegion].slots();
    if (static_cast<std::uint64_t>(needed) <= slots) continue;
    wait_written();
    for (int group = 0; group < groups_.count(); ++group) lanes_.wait(groups_.update(group));
    const auto changing = stores_.front().room.changing();
    try {
      of.room.add_slot(of.store, StateStream::kGradientRegion);
    } catch (const IoError&) {
      if (!of.store.is_in_memory()) throw;
      throw OutOfMemory(concat("offload: host memory has no room for the gradients of ", needed,
                               " backwards; set accumulate=", needed,
                               " or more at the beginning, so that states leave room for them, or "
                               "raise budget.host"));
    }
  }
}

void GradientSpill::submit(int chunk, std::vector<Hop> hops) {
  Payload payload;
  payload.key = key_of(chunk);
  payload.deadline = kAsTheyCame;
  payload.name = concat("gradient of chunk ", chunk);
  payload.hops = std::move(hops);
  lanes_.executor().submit(std::move(payload));
}

// Runs in d2h.
void GradientSpill::leave(const Source& from, std::span<std::byte> into, ScanResult& sum) {
  sum = merge(sum, exit_.leave(from.there, from.bytes, from.dtype, into));
}

void GradientSpill::add_alone(int chunk, Source from) {
  Chunk& state = chunks_[at(chunk)];
  const std::size_t bytes = extent_bytes(planned(chunk), gradient_);
  const std::size_t crossing = from.bytes.size() / size_bytes(from.dtype) * size_bytes(gradient_);
  auto depart = [this, &state, crossing, from = std::move(from)](std::span<std::byte> extent) {
    std::ranges::fill(extent.subspan(crossing), std::byte{0});
    leave(from, extent.first(crossing), state.scans.front());
  };
  if (speculation_.takes(chunk)) {
    speculation_.stage(chunk, std::move(depart), crossing);
    if (speculation_.keeps_gradients()) ++state.extents;
    return;
  }
  const int slot = state.extents++;
  const auto lease = std::make_shared<std::optional<PinnedPool::Lease>>();
  const auto copy = [this, lease, bytes, depart = std::move(depart)](StreamRef) {
    lease->emplace(ring_.acquire(bytes, "gradient", kWaitLimit, kBlockBytes));
    depart((*lease)->bytes());
  };
  const auto write = [this, lease, chunk, slot](StreamRef, const HopDone& done) {
    stream_.write_extent(chunk, slot, (*lease)->bytes(),
                         [lease, done](const std::exception_ptr& error) { done(error); });
  };
  submit(chunk, {{kD2h, copy, {}, crossing}, {kSpill, {}, write, bytes}});
}

void GradientSpill::add_shared(int chunk, std::size_t piece, Source from) {
  Chunk& state = chunks_[at(chunk)];
  if (state.arrived[piece]) {  // A second gradient in one backward.
    lanes_.wait(key_of(chunk));
    flush(chunk);
    make_room(chunk);
  }
  if (!is_dirty(state)) lanes_.wait(key_of(chunk));  // The buffer may still go to the drive.
  state.arrived[piece] = true;
  const std::span<std::byte> into =
      part(state.buffer->as<std::byte>(), planned(chunk).pieces[piece], gradient_);
  const auto copy = [this, &state, piece, into, from = std::move(from)](StreamRef) {
    leave(from, into, state.scans[piece]);
  };
  submit(chunk, {{kD2h, copy, {}, into.size()}});
}

bool GradientSpill::is_dirty(const Chunk& chunk) {
  return std::ranges::find(chunk.arrived, true) != chunk.arrived.end();
}

// Writes zeros where no gradient has arrived, and returns which pieces have one. The pieces must
// have left the device.
std::vector<bool> GradientSpill::gather(int chunk) {
  Chunk& state = chunks_[at(chunk)];
  const std::span<std::byte> bytes = state.buffer->as<std::byte>();
  for (std::size_t p = 0; p < state.arrived.size(); ++p) {
    if (state.arrived[p]) continue;
    std::ranges::fill(part(bytes, planned(chunk).pieces[p], gradient_), std::byte{0});
  }
  return std::exchange(state.arrived, std::vector<bool>(state.arrived.size(), false));
}

void GradientSpill::flush(int chunk) {
  gather(chunk);
  Chunk& state = chunks_[at(chunk)];
  const std::span<std::byte> bytes = state.buffer->as<std::byte>();
  const int slot = state.extents++;
  const auto write = [this, chunk, slot, bytes](StreamRef, const HopDone& done) {
    stream_.write_extent(chunk, slot, bytes,
                         [done](const std::exception_ptr& error) { done(error); });
  };
  submit(chunk, {{kSpill, {}, write, bytes.size()}});
}

// ---- A backward has ended -----------------------------------------------------------------------

void GradientSpill::end_backward() {
  wait_written();
  for (std::size_t c = 0; c < chunks_.size(); ++c) {
    if (is_dirty(chunks_[c])) end_gathering(static_cast<int>(c));
  }
}

void GradientSpill::end_gathering(int chunk) {
  Chunk& state = chunks_[at(chunk)];
  if (state.extents > 0 || !speculation_.takes(chunk)) return flush(chunk);
  const std::vector<bool> has = gather(chunk);
  speculation_.stage_gathered(chunk, state.buffer->as<std::byte>(), has);
  if (speculation_.keeps_gradients()) ++state.extents;
}

void GradientSpill::wait_written() {
  for (int group = 0; group < groups_.count(); ++group) lanes_.wait(groups_.spill(group));
  waiting_.clear();
  waiting_bytes_ = 0;
}

void GradientSpill::scan_sums() {
  wait_written();
  std::vector<int> chunks;
  for (std::size_t c = 0; c < chunks_.size(); ++c) {
    const bool several = std::ranges::any_of(
        plan_.chunks()[c].pieces,
        [&](const ChunkPiece& piece) { return backwards_[at(piece.tensor)] > 1; });
    if (several && chunks_[c].summed != chunks_[c].extents) chunks.push_back(static_cast<int>(c));
  }
  for (const int chunk : chunks) {
    Payload payload = stream_.scan_sum(chunk, chunks_[at(chunk)].extents, chunks_[at(chunk)].sums);
    payload.key = key_of(chunk);
    payload.deadline = static_cast<std::uint64_t>(groups_.of_chunk(chunk));
    lanes_.executor().submit(std::move(payload));
  }
  wait_written();
  for (const int chunk : chunks) chunks_[at(chunk)].summed = chunks_[at(chunk)].extents;
}

bool GradientSpill::must_sum() const {
  for (std::size_t c = 0; c < chunks_.size(); ++c) {
    for (const ScanResult& scan : chunks_[c].scans) {
      const float most = scan.abs_max * static_cast<float>(chunks_[c].extents);
      if (scan.finite && !std::isfinite(most)) return true;
    }
  }
  return false;
}

ScanResult GradientSpill::scan(int tensor) const {
  ScanResult result;
  const bool several = backwards_[at(tensor)] > 1;
  for (const int chunk : plan_.of_tensor(tensor)) {
    const Chunk& state = chunks_[at(chunk)];
    const std::vector<ChunkPiece>& pieces = planned(chunk).pieces;
    const auto piece = static_cast<std::size_t>(
        std::ranges::find(pieces, tensor, &ChunkPiece::tensor) - pieces.begin());
    ScanResult one = state.scans[piece];
    if (several && one.finite) {
      one.sum_squares = std::numeric_limits<double>::quiet_NaN();
      if (state.summed == state.extents) one = state.sums[piece];
    }
    result = merge(result, one);
  }
  return result;
}

void GradientSpill::clear() {
  for (Chunk& chunk : chunks_) {
    chunk.extents = chunk.summed = 0;
    std::ranges::fill(chunk.scans, ScanResult{});
    std::ranges::fill(chunk.sums, ScanResult{});
    chunk.arrived.assign(chunk.arrived.size(), false);
  }
  std::ranges::fill(backwards_, 0);
  waiting_.clear();
  waiting_bytes_ = 0;
}

}  // namespace sluiceway
