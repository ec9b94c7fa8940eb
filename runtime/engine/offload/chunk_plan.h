// Assigns elements of tensors to chunks.
//
// A chunk is counted in elements, so it is the same chunk in each stream of a run: moments,
// masters, gradients. A large tensor has chunks of its own, as equal as possible, so that each can
// be processed once its gradient is there. Small tensors share chunks in the order of the model.
//
//   stored    elements that lie on a drive: the used ones, rounded up to whole blocks
//   piece     a part of one tensor in one chunk; starts at a multiple of kPieceAlignment
//
// Errors: InvalidArgument: no elements, or a chunk size that is not a multiple of kStoredAlignment.
// Cost:   unused are less than kStoredAlignment elements of each chunk, and the ends of shared
//         chunks.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

namespace sluiceway {

struct ChunkPiece {
  int tensor = 0;
  std::int64_t first = 0;  // First element of the tensor.
  std::int64_t elems = 0;
  std::int64_t at = 0;  // First element of the chunk.
};

struct PlannedChunk {
  std::vector<ChunkPiece> pieces;  // In order of `at`.
  std::int64_t elems = 0;          // Up to the end of the last piece.
  std::int64_t stored_elems = 0;   // A multiple of kStoredAlignment.
};

class ChunkPlan {
 public:
  static constexpr std::int64_t kChunkElems = std::int64_t{1} << 20;
  // 4096 bytes of 16-bit gradients, so whole blocks in every wider stream too.
  static constexpr std::int64_t kStoredAlignment = 2048;
  static constexpr std::int64_t kPieceAlignment = 256;  // A block of an 8-bit state.

  explicit ChunkPlan(std::span<const std::int64_t> tensor_elems,
                     std::int64_t chunk_elems = kChunkElems);

  // Returns the elements in each of a large tensor's own chunks but the last.
  static std::int64_t elems_of_each(std::int64_t elems, std::int64_t chunk_elems);

  const std::vector<PlannedChunk>& chunks() const noexcept { return chunks_; }
  // Returns the chunks that hold parts of a tensor, in order of its elements.
  std::span<const int> of_tensor(int tensor) const { return of_tensor_.at(index(tensor)); }
  std::int64_t chunk_elems() const noexcept { return chunk_elems_; }
  std::int64_t tensor_elems() const noexcept { return tensor_elems_; }  // Of all tensors.
  std::int64_t stored_elems() const noexcept;                           // Of all chunks.

 private:
  static std::size_t index(int tensor) { return static_cast<std::size_t>(tensor); }
  void place_large(int tensor, std::int64_t elems);
  void place_small(int tensor, std::int64_t elems);
  void add(PlannedChunk& chunk, const ChunkPiece& piece);

  std::int64_t chunk_elems_;
  std::int64_t tensor_elems_ = 0;
  std::vector<PlannedChunk> chunks_;
  std::vector<std::vector<int>> of_tensor_;
  int shared_ = -1;  // The chunk that receives small tensors; -1: none is open.
};

}  // namespace sluiceway
