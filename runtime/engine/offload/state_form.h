// How a chunk stores AdamW's states: the formats, their place in the chunk, and tiles of f32.
//
//   codec   m, v                          master
//   fp32    f32                           f32
//   bf16    bf16, rounded at random       bf16 weights are their own master; else f32
//   8bit    1 byte, a scale for 256       24 bits for bf16 weights; else f32
//
// A chunk has one form: its masters are f32 where one of its weights is not bf16. States lie in
// parts, each of which is a chunk of the store: m, v and master where all are f32, otherwise all
// three in one part. In a form that holds the model's own bits of a weight, the weight needs no
// copy: f32 masters hold f32 weights, the other two bf16 weights.
//
// Thread safety: a value that does not change; two threads may work on two pieces of a chunk.
// Errors:        none; sizes are those of the chunk.
// Source:        kernels/state_codec.h
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>

#include "kernels/base/dtype.h"
#include "kernels/philox.h"
#include "kernels/state_codec.h"
#include "runtime/engine/offload/chunk_plan.h"

namespace sluiceway {

enum class StateCodec : std::uint8_t { kFp32, kBf16, k8Bit };

std::string_view to_string(StateCodec codec) noexcept;

enum class StateSet : std::uint8_t { kNone, kMasters, kAll };

inline constexpr int kStateStreams = 3;  // exp_avg, exp_avg_sq and master.

class StateForm {
 public:
  static constexpr std::size_t kMaster = 2;  // Index among states, and among f32 parts.
  // exp_avg, exp_avg_sq and master of a piece, or of a part of it.
  using PieceState = std::array<std::span<float>, kStateStreams>;
  // The memory of each part; empty where a part is not there.
  using Parts = std::array<std::span<std::byte>, kStateStreams>;

  // `weights`: one per tensor, types that the model computes with.
  StateForm(StateCodec codec, const PlannedChunk& chunk, std::span<const DType> weights);

  // Returns the store's chunks for a chunk of any form.
  static constexpr std::size_t parts(StateCodec codec) noexcept {
    return codec == StateCodec::kFp32 ? kStateStreams : 1;
  }
  std::size_t part_bytes() const noexcept;  // Whole blocks.
  std::size_t bytes() const noexcept { return parts(codec_) * part_bytes(); }
  // Returns the part that has the masters.
  std::size_t master_part() const noexcept { return is_plain() ? kMaster : 0; }

  bool is_plain() const noexcept { return codec_ == StateCodec::kFp32; }  // All are f32.
  bool holds(DType weight) const noexcept {
    return weight == (narrow_masters_ ? DType::kBF16 : DType::kF32);
  }
  // Returns the memory of a weight that the form holds.
  std::span<std::byte> weight(const Parts& parts, const ChunkPiece& piece) const;

  // Returns the states of a piece where they lie; for a plain form.
  PieceState in_place(const Parts& parts, const ChunkPiece& piece) const;
  // Returns f32 masters where they lie; for a form that holds f32.
  std::span<float> masters(const Parts& parts, const ChunkPiece& piece) const;

  // Read or write elements [first, first + n) of a piece, where n <= kTileElems is the size of each
  // of `tile`. `first` is a multiple of kStateBlock. `key`: of the tensor in this step; its purpose
  // is set here. For a form that is not plain.
  static constexpr std::size_t kTileElems = 8 * kStateBlock;  // In f32, 24 KiB of states.
  void load(const Parts& parts, const ChunkPiece& piece, std::size_t first,
            const PieceState& tile) const;
  void store(const Parts& parts, const ChunkPiece& piece, std::size_t first, const PieceState& tile,
             const NoiseKey& key) const;

 private:
  Blocks8 blocks(const Parts& parts, const ChunkPiece& piece, std::size_t state, std::size_t first,
                 std::size_t elems) const;
  template <typename T>
  std::span<T> elements_at(const Parts& parts, std::size_t offset, const ChunkPiece& piece,
                           std::size_t first, std::size_t elems) const;
  std::size_t moment_bytes() const noexcept;
  std::size_t master_bytes() const noexcept;

  StateCodec codec_;
  std::size_t elems_;  // Stored ones.
  bool narrow_masters_;
};

}  // namespace sluiceway
