#include "runtime/engine/offload/chunk_plan.h"

#include <algorithm>

#include "kernels/base/check.h"
#include "runtime/device/device_memory.h"

namespace sluiceway {

ChunkPlan::ChunkPlan(std::span<const std::int64_t> tensor_elems, std::int64_t chunk_elems)
    : chunk_elems_(chunk_elems), of_tensor_(tensor_elems.size()) {
  SLUICEWAY_CHECK(chunk_elems > 0 && chunk_elems % kStoredAlignment == 0, "ChunkPlan: chunks of ",
                  chunk_elems, " elements, expected a multiple of ", kStoredAlignment);
  for (std::size_t i = 0; i < tensor_elems.size(); ++i) {
    const std::int64_t elems = tensor_elems[i];
    SLUICEWAY_CHECK(elems > 0, "ChunkPlan: tensor ", i, " has ", elems,
                    " elements, expected 1 or more");
    tensor_elems_ += elems;
    // A tensor of half a chunk or more gets chunks of its own: their waste costs less than the
    // waits that sharing would cause.
    if (2 * elems >= chunk_elems) {
      place_large(static_cast<int>(i), elems);
    } else {
      place_small(static_cast<int>(i), elems);
    }
  }
  for (PlannedChunk& chunk : chunks_) {
    chunk.stored_elems = round_up(chunk.elems, kStoredAlignment);
  }
}

// All but the last are equal, and whole blocks, so no chunk is nearly empty.
std::int64_t ChunkPlan::elems_of_each(std::int64_t elems, std::int64_t chunk_elems) {
  const std::int64_t count = (elems + chunk_elems - 1) / chunk_elems;
  return round_up((elems + count - 1) / count, kStoredAlignment);
}

void ChunkPlan::place_large(int tensor, std::int64_t elems) {
  const std::int64_t each = elems_of_each(elems, chunk_elems_);
  for (std::int64_t first = 0; first < elems; first += each) {
    chunks_.emplace_back();
    add(chunks_.back(), {tensor, first, std::min(each, elems - first), 0});
  }
}

void ChunkPlan::place_small(int tensor, std::int64_t elems) {
  std::int64_t at = 0;
  if (shared_ >= 0) at = round_up(chunks_[index(shared_)].elems, kPieceAlignment);
  if (shared_ < 0 || at + elems > chunk_elems_) {
    shared_ = static_cast<int>(chunks_.size());
    chunks_.emplace_back();
    at = 0;
  }
  add(chunks_[index(shared_)], {tensor, 0, elems, at});
}

void ChunkPlan::add(PlannedChunk& chunk, const ChunkPiece& piece) {
  chunk.pieces.push_back(piece);
  chunk.elems = piece.at + piece.elems;
  of_tensor_[index(piece.tensor)].push_back(static_cast<int>(&chunk - chunks_.data()));
}

std::int64_t ChunkPlan::stored_elems() const noexcept {
  std::int64_t elems = 0;
  for (const PlannedChunk& chunk : chunks_) elems += chunk.stored_elems;
  return elems;
}

}  // namespace sluiceway
