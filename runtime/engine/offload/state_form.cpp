#include "runtime/engine/offload/state_form.h"

#include <algorithm>

#include "kernels/base/check.h"
#include "kernels/base/elements.h"
#include "kernels/fp8_image.h"
#include "kernels/perturb.h"
#include "runtime/device/device_memory.h"
#include "runtime/engine/offload/extent_sum.h"
#include "runtime/engine/offload/stored_weight.h"
#include "runtime/store/blocks.h"

namespace sluiceway {
namespace {

constexpr std::uint32_t kRoundingPurpose = 0x53544154;  // "STAT"

// Returns elements [first, first + count) of an array that begins at byte `begin`.
template <typename T>
std::span<T> elements_at(std::span<std::byte> bytes, std::size_t begin, std::size_t first,
                         std::size_t count) {
  return elements<T>(bytes.subspan(begin + first * sizeof(T), count * sizeof(T)));
}

}  // namespace

std::string_view to_string(StateCodec codec) noexcept {
  switch (codec) {
    case StateCodec::kFp32:
      return "fp32";
    case StateCodec::kBf16:
      return "bf16";
    case StateCodec::k8Bit:
      return "8bit";
  }
  return "";
}

StateForm::StateForm(StateCodec codec, const PlannedChunk& chunk, std::span<const DType> weights,
                     std::span<const Streamed> streamed)
    : codec_(codec),
      elems_(static_cast<std::size_t>(chunk.stored_elems)),
      weights_(weights),
      widest_(0) {
  for (const ChunkPiece& piece : chunk.pieces) {
    const auto tensor = static_cast<std::size_t>(piece.tensor);
    if (!streamed.empty() && streamed[tensor] != Streamed::kNo) {
      SLUICEWAY_CHECK(chunk.pieces.size() == 1, "StateForm: the streamed tensor ", tensor,
                      " shares its chunk with ", chunk.pieces.size() - 1,
                      " others, expected chunks of its own; use smaller chunks");
      streamed_ = weights_[tensor];
      is_frozen_ = streamed[tensor] != Streamed::kTrained;
      stored_form_ = stored_form(streamed[tensor], weights_[tensor]);
    }
    widest_ = std::max(widest_, master_width(is_narrow(piece)));
  }
  if (master_is_weight()) widest_ -= size_bytes(*streamed_);
}

bool StateForm::is_narrow(const ChunkPiece& piece) const {
  return !is_plain() && weights_[static_cast<std::size_t>(piece.tensor)] == DType::kBF16;
}

std::size_t StateForm::master_width(bool narrow) const noexcept {
  if (!narrow) return sizeof(float);
  return codec_ == StateCodec::k8Bit ? sizeof(bf16) + 1 : sizeof(bf16);
}

std::size_t StateForm::moment_bytes() const noexcept {
  switch (codec_) {
    case StateCodec::kFp32:
      return elems_ * sizeof(float);
    case StateCodec::kBf16:
      return elems_ * sizeof(bf16);
    case StateCodec::k8Bit:
      return elems_ + elems_ / kStateBlock * sizeof(float);
  }
  return 0;
}

std::size_t StateForm::part_bytes() const noexcept {
  if (is_plain()) return moment_bytes();
  return round_up(2 * moment_bytes() + widest_ * elems_, std::size_t{kBlockBytes});
}

std::size_t StateForm::weight_bytes() const noexcept {
  if (!streamed_ || (is_plain() && !is_frozen_ && *streamed_ == DType::kF32)) return 0;
  return StoredWeight::chunk_bytes(stored_form_, static_cast<std::int64_t>(elems_));
}

// A piece begins at a whole block, and has room for whole blocks.
template <typename T>
std::span<T> StateForm::master_of(const Parts& parts, const ChunkPiece& piece, std::size_t first,
                                  std::size_t elems) const {
  const auto at = static_cast<std::size_t>(piece.at);
  if (master_is_weight()) return elements_at<T>(parts[kWeight], at * sizeof(T), first, elems);
  if (is_plain()) return elements_at<T>(parts[kMaster], at * sizeof(T), first, elems);
  return elements_at<T>(parts[0], 2 * moment_bytes() + at * widest_, first, elems);
}

std::span<std::uint8_t> StateForm::low_of(const Parts& parts, const ChunkPiece& piece,
                                          std::size_t first, std::size_t elems) const {
  const std::size_t high = round_up(static_cast<std::size_t>(piece.elems), kStateBlock);
  const std::size_t begin = 2 * moment_bytes() + static_cast<std::size_t>(piece.at) * widest_;
  return elements_at<std::uint8_t>(parts[0], begin + (master_is_weight() ? 0 : high * sizeof(bf16)),
                                   first, elems);
}

StateForm::PieceState StateForm::in_place(const Parts& parts, const ChunkPiece& piece) const {
  const auto state = [&](std::size_t part) {
    return elements_at<float>(parts[part], 0, static_cast<std::size_t>(piece.at),
                              static_cast<std::size_t>(piece.elems));
  };
  return {state(0), state(1), state(kMaster)};
}

std::span<float> StateForm::masters(const Parts& parts, const ChunkPiece& piece) const {
  return master_of<float>(parts, piece, 0, static_cast<std::size_t>(piece.elems));
}

std::span<std::byte> StateForm::weight(const Parts& parts, const ChunkPiece& piece) const {
  const auto elems = static_cast<std::size_t>(piece.elems);
  if (is_copy() || is_frozen_) return parts[kWeight].first(stored_form_.bytes(elems));
  if (!is_narrow(piece)) return std::as_writable_bytes(masters(parts, piece));
  return std::as_writable_bytes(master_of<bf16>(parts, piece, 0, elems));
}

void StateForm::copy_weight(const Parts& parts, const ChunkPiece& piece,
                            std::span<const float> master) const {
  if (stored_form_.is_fp8_image()) {
    cpu::make_fp8_image(master, weight(parts, piece));
  } else {
    with_type(*streamed_, [&](auto type) {
      using T = decltype(type);
      std::ranges::transform(master, elements<T>(weight(parts, piece)).begin(),
                             [](float value) { return from_float<T>(value); });
    });
  }
  clear_end(parts, piece);
}

void StateForm::load_weight(const Parts& parts, const ChunkPiece& piece,
                            std::span<float> values) const {
  cpu::materialise(weight(parts, piece), stored_form_, std::as_writable_bytes(values), DType::kF32,
                   Theta{});
}

void StateForm::clear_end(const Parts& parts, const ChunkPiece& piece) const {
  std::ranges::fill(parts[kWeight].subspan(weight(parts, piece).size()), std::byte{0});
}

Blocks8 StateForm::blocks(const Parts& parts, const ChunkPiece& piece, std::size_t state,
                          std::size_t first, std::size_t elems) const {
  const std::size_t begin = state * moment_bytes();
  const std::size_t count = (elems + kStateBlock - 1) / kStateBlock;
  const std::size_t at = static_cast<std::size_t>(piece.at) + first;
  return {elements_at<std::uint8_t>(parts[0], begin, at, count * kStateBlock),
          elements_at<float>(parts[0], begin + elems_, at / kStateBlock, count)};
}

void StateForm::load(const Parts& parts, const ChunkPiece& piece, std::size_t first,
                     const PieceState& tile) const {
  const std::size_t elems = tile[0].size(), at = static_cast<std::size_t>(piece.at) + first;
  if (codec_ == StateCodec::k8Bit) {
    cpu::load_state(blocks(parts, piece, 0, first, elems), Companding::kSigned, tile[0]);
    cpu::load_state(blocks(parts, piece, 1, first, elems), Companding::kPositive, tile[1]);
  } else {
    for (std::size_t i = 0; i < kMaster; ++i) {
      cpu::load_state(elements_at<bf16>(parts[0], i * moment_bytes(), at, elems), tile[i]);
    }
  }
  if (!is_narrow(piece)) {
    std::ranges::copy(master_of<float>(parts, piece, first, elems), tile[kMaster].begin());
    return;
  }
  const std::span<bf16> hi = master_of<bf16>(parts, piece, first, elems);
  if (codec_ == StateCodec::kBf16) return cpu::load_state(hi, tile[kMaster]);
  cpu::load_state({hi, low_of(parts, piece, first, elems)}, tile[kMaster]);
}

void StateForm::store(const Parts& parts, const ChunkPiece& piece, std::size_t first,
                      const PieceState& tile, const std::optional<NoiseKey>& key) const {
  const std::size_t elems = tile[0].size(), at = static_cast<std::size_t>(piece.at) + first;
  std::array<std::uint16_t, kTileElems> drawn;
  std::span<std::uint16_t> bits;
  if (key) {
    NoiseKey of_rounding = *key;
    of_rounding.purpose = kRoundingPurpose;
    bits = std::span(drawn).first(round_up(elems, kStateBlock));
    cpu::fill_bits(of_rounding, static_cast<std::uint64_t>(piece.first) + first, bits);
  }
  const auto noise = [&](std::size_t state) {
    return RoundingNoise{bits, kNoiseMultipliers[state]};
  };
  if (codec_ == StateCodec::k8Bit) {
    cpu::store_state(tile[0], Companding::kSigned, noise(0), blocks(parts, piece, 0, first, elems));
    cpu::store_state(tile[1], Companding::kPositive, noise(1),
                     blocks(parts, piece, 1, first, elems));
  } else {
    for (std::size_t i = 0; i < kMaster; ++i) {
      cpu::store_state(tile[i], noise(i),
                       elements_at<bf16>(parts[0], i * moment_bytes(), at, elems));
    }
  }
  if (!is_narrow(piece)) {
    std::ranges::copy(tile[kMaster], master_of<float>(parts, piece, first, elems).begin());
    return;
  }
  const std::span<bf16> hi = master_of<bf16>(parts, piece, first, elems);
  if (codec_ == StateCodec::kBf16) return cpu::store_state(tile[kMaster], noise(kMaster), hi);
  cpu::store_state(tile[kMaster], noise(kMaster), Split24{hi, low_of(parts, piece, first, elems)});
}

}  // namespace sluiceway
