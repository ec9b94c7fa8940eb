// Assigns the weights of an arena to chunks.
//
// Weights lie one after another, each in chunks of its own. All chunks of a weight have one size,
// the chunk size of its region: `chunk_bytes` if the weight is at least that large, else the next
// power of two of blocks. So a small weight takes less than twice its size, and reading one weight
// reads nothing else.
//
// Errors: InvalidArgument: no weights, a weight without elements or name, a name that occurs twice,
//         a group that no log has, chunks that are not whole blocks.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "kernels/base/dtype.h"
#include "runtime/store/chunk_store.h"
#include "runtime/store/new_layout.h"

namespace sluiceway {

// The name also keys its noise (stable_hash()), so no two weights share one.
struct ArenaWeight {
  static constexpr int kUntrained = -1;

  std::string name;
  std::int64_t elements = 0;
  DType dtype = DType::kF32;
  int group = 0;  // Group in the log, or kUntrained for a weight that never changes.

  bool is_trained() const noexcept { return group != kUntrained; }
  std::uint64_t bytes() const noexcept {
    return static_cast<std::uint64_t>(elements) * size_bytes(dtype);
  }
};

// Content of one chunk: bytes [first, first + bytes) of a weight, whole elements, then zeros.
struct ArenaPiece {
  std::size_t weight = 0;
  ChunkId chunk;
  std::uint64_t first = 0;
  std::uint64_t bytes = 0;
  std::uint64_t stored_bytes = 0;  // Whole blocks.
};

// Returns the bytes that a weight of `bytes` takes in a store, and that a read of it transfers.
std::uint64_t whole_blocks(std::uint64_t bytes) noexcept;

class ArenaPlan {
 public:
  ArenaPlan(std::vector<ArenaWeight> weights, std::uint64_t chunk_bytes);

  const std::vector<ArenaWeight>& weights() const noexcept { return weights_; }
  const std::vector<ArenaPiece>& pieces() const noexcept { return pieces_; }  // In order.
  std::span<const ArenaPiece> pieces_of(std::size_t weight) const;
  std::uint64_t stored_bytes(std::size_t weight) const;
  std::uint64_t largest_chunk_bytes() const noexcept;

  Contents contents() const;  // For a store of these weights, with its catalogue.
  // InvalidArgument: the store holds other weights; the text names the first difference.
  void check(const ChunkStore& store) const;

 private:
  std::vector<ArenaWeight> weights_;
  std::uint64_t chunk_bytes_;
  std::vector<RegionSpec> regions_;
  std::vector<ArenaPiece> pieces_;
  std::vector<std::size_t> first_piece_;  // By weight, plus an end.
};

}  // namespace sluiceway
