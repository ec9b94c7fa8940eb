// How a chunk stores AdamW's states: the formats, their place in the chunk, and tiles of f32.
//
//   codec   m, v                          master
//   fp32    f32                           f32
//   bf16    bf16, rounded at random       bf16 weights are their own master; else f32
//   8bit    1 byte, a scale for 256       24 bits for bf16 weights; else f32
//
// A master's format follows from its weight alone, not from the others in its chunk; the chunk has
// as much room for each master as its widest takes. States lie in parts, each of which is a chunk
// of the store: m, v and master with fp32, otherwise all three in one part. Where the master holds
// the model's own bits of a weight, the weight needs no copy: f32 masters hold f32 weights, the
// other two bf16 weights.
//
// The weight of a streamed tensor is stored too, in a part of its own that has nothing else, so
// that a forward reads just that. Such a tensor shares no chunk.
//
//   codec, weight                        the part of the weight
//   fp32, f32                            kMaster: the master is the weight
//   bf16 or 8bit, f32 or bf16            kWeight: what the master holds of the weight moves there
//   any other                            kWeight: a copy that follows the master
//
// A frozen tensor has kWeight and no states. Its weight is in the model's type, or an fp8 image.
//
// Lifetime:      the lists outlive the form.
// Thread safety: a value that does not change; two threads may work on two pieces of a chunk.
// Errors:        none; sizes are those of the chunk.
// Source:        kernels/state_codec.h
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string_view>

#include "kernels/base/dtype.h"
#include "kernels/philox.h"
#include "kernels/state_codec.h"
#include "kernels/weight_form.h"
#include "runtime/engine/offload/chunk_plan.h"

namespace sluiceway {

enum class StateCodec : std::uint8_t { kFp32, kBf16, k8Bit };

std::string_view to_string(StateCodec codec) noexcept;

// Whether a tensor's weight is stored for a forward to read.
enum class Streamed : std::uint8_t { kNo, kTrained, kFrozen, kFrozenFp8 };

// Returns the form of a stored weight of this type.
constexpr WeightForm stored_form(Streamed streamed, DType dtype) noexcept {
  return streamed == Streamed::kFrozenFp8 ? WeightForm::fp8_image() : WeightForm(dtype);
}

enum class StateSet : std::uint8_t { kNone, kWeights, kAll };  // kWeights: what they are made of.

inline constexpr int kStateStreams = 3;  // exp_avg, exp_avg_sq and master.

class StateForm {
 public:
  static constexpr std::size_t kMaster = 2;  // Index among states, and among f32 parts.
  static constexpr std::size_t kWeight = 3;  // Index of a streamed weight among the parts.
  // exp_avg, exp_avg_sq and master of a piece, or of a part of it.
  using PieceState = std::array<std::span<float>, kStateStreams>;
  // The memory of each part; empty where a part is not there.
  using Parts = std::array<std::span<std::byte>, kStateStreams + 1>;

  // `weights`: one per tensor, types that the model computes with. `streamed`: one per tensor;
  // empty: none is. InvalidArgument: a streamed tensor shares this chunk.
  StateForm(StateCodec codec, const PlannedChunk& chunk, std::span<const DType> weights,
            std::span<const Streamed> streamed = {});

  // Returns the chunks of states in the store for a chunk of any form; kWeight is none of them.
  static constexpr std::size_t parts(StateCodec codec) noexcept {
    return codec == StateCodec::kFp32 ? kStateStreams : 1;
  }
  std::size_t parts() const noexcept { return is_frozen_ ? 0 : parts(codec_); }
  std::size_t part_bytes() const noexcept;    // Whole blocks.
  std::size_t weight_bytes() const noexcept;  // Of kWeight, whole blocks; 0: there is none.
  std::size_t bytes() const noexcept { return parts() * part_bytes() + weight_bytes(); }
  std::size_t bytes_of(std::size_t part) const noexcept {
    return part == kWeight ? weight_bytes() : part_bytes();
  }
  // Returns the part that has the masters.
  std::size_t master_part() const noexcept { return is_plain() ? kMaster : 0; }

  bool is_plain() const noexcept { return codec_ == StateCodec::kFp32; }  // All are f32.
  bool holds(DType weight) const noexcept {
    return weight == DType::kF32 || (weight == DType::kBF16 && !is_plain());
  }
  // Whether a weight is stored: its master holds it, or it is streamed.
  bool stores(DType weight) const noexcept { return is_streamed() || holds(weight); }
  // Returns the memory of a weight that is stored.
  std::span<std::byte> weight(const Parts& parts, const ChunkPiece& piece) const;

  // ---- A streamed weight ----
  bool is_streamed() const noexcept { return streamed_.has_value(); }
  bool is_frozen() const noexcept { return is_frozen_; }
  // Returns the part that has it, and nothing else.
  std::size_t weight_part() const noexcept { return weight_bytes() > 0 ? kWeight : kMaster; }
  // Whether that part is a copy, which an update writes and does not read.
  bool is_copy() const noexcept { return is_streamed() && !is_frozen_ && !holds(*streamed_); }
  // Whether an update reads that part, which is all or a part of its masters.
  bool updates_read_weight() const noexcept { return is_streamed() && !is_frozen_ && !is_copy(); }
  // Makes kWeight of a piece from its master, or from the values of a frozen weight.
  void copy_weight(const Parts& parts, const ChunkPiece& piece,
                   std::span<const float> master) const;
  // Reads the values of a frozen weight.
  void load_weight(const Parts& parts, const ChunkPiece& piece, std::span<float> values) const;
  // Clears what a copy has behind its piece, which is stored too.
  void clear_end(const Parts& parts, const ChunkPiece& piece) const;

  // Returns the states of a piece where they lie; for a plain form.
  PieceState in_place(const Parts& parts, const ChunkPiece& piece) const;
  // Returns a piece's masters where they lie; for a weight that is not held, so they are f32.
  std::span<float> masters(const Parts& parts, const ChunkPiece& piece) const;

  // Read or write elements [first, first + n) of a piece, where n <= kTileElems is the size of each
  // of `tile`. `first` is a multiple of kStateBlock. `key`: of the tensor in this step; its purpose
  // is set here. Without one, values go to nearest, so that a master still rounds to its weight.
  // For a form that is not plain.
  static constexpr std::size_t kTileElems = 8 * kStateBlock;  // In f32, 24 KiB of states.
  void load(const Parts& parts, const ChunkPiece& piece, std::size_t first,
            const PieceState& tile) const;
  void store(const Parts& parts, const ChunkPiece& piece, std::size_t first, const PieceState& tile,
             const std::optional<NoiseKey>& key) const;

 private:
  Blocks8 blocks(const Parts& parts, const ChunkPiece& piece, std::size_t state, std::size_t first,
                 std::size_t elems) const;
  bool is_narrow(const ChunkPiece& piece) const;  // Its master has fewer than 4 bytes.
  std::size_t moment_bytes() const noexcept;
  std::size_t master_width(bool narrow) const noexcept;
  // Whether a piece's master, or the high bytes of one with 24 bits, is in kWeight.
  bool master_is_weight() const noexcept { return weight_bytes() > 0 && !is_copy(); }
  // Returns a piece's master, or the high bytes of one with 24 bits, from element `first` on.
  template <typename T>
  std::span<T> master_of(const Parts& parts, const ChunkPiece& piece, std::size_t first,
                         std::size_t elems) const;
  // Returns the low bytes of a master with 24 bits, from element `first` on.
  std::span<std::uint8_t> low_of(const Parts& parts, const ChunkPiece& piece, std::size_t first,
                                 std::size_t elems) const;

  StateCodec codec_;
  std::size_t elems_;  // Stored ones.
  std::span<const DType> weights_;
  std::optional<DType> streamed_;         // The type of the weight, if it is streamed,
  WeightForm stored_form_ = DType::kF32;  // and its form.
  bool is_frozen_ = false;
  std::size_t widest_;  // Bytes of an element of the widest master, without what is in kWeight.
};

}  // namespace sluiceway
