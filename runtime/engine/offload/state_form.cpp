#include "runtime/engine/offload/state_form.h"

#include <algorithm>

#include "kernels/base/elements.h"
#include "runtime/device/device_memory.h"
#include "runtime/store/blocks.h"

namespace sluiceway {
namespace {

constexpr std::uint32_t kRoundingPurpose = 0x53544154;  // "STAT"

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

StateForm::StateForm(StateCodec codec, const PlannedChunk& chunk, std::span<const DType> weights)
    : codec_(codec),
      elems_(static_cast<std::size_t>(chunk.stored_elems)),
      narrow_masters_(codec != StateCodec::kFp32 &&
                      std::ranges::all_of(chunk.pieces, [&](const ChunkPiece& piece) {
                        return weights[static_cast<std::size_t>(piece.tensor)] == DType::kBF16;
                      })) {}

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

std::size_t StateForm::master_bytes() const noexcept {
  if (!narrow_masters_) return elems_ * sizeof(float);
  return elems_ * (sizeof(bf16) + (codec_ == StateCodec::k8Bit ? 1 : 0));
}

std::size_t StateForm::part_bytes() const noexcept {
  if (is_plain()) return moment_bytes();
  return round_up(2 * moment_bytes() + master_bytes(), std::size_t{kBlockBytes});
}

// Returns elements of an array of the chunk, which begins at `offset` of the only part.
template <typename T>
std::span<T> StateForm::elements_at(const Parts& parts, std::size_t offset, const ChunkPiece& piece,
                                    std::size_t first, std::size_t elems) const {
  const std::size_t at = static_cast<std::size_t>(piece.at) + first;
  return elements<T>(parts[0].subspan(offset + at * sizeof(T), elems * sizeof(T)));
}

StateForm::PieceState StateForm::in_place(const Parts& parts, const ChunkPiece& piece) const {
  const auto state = [&](std::size_t part) {
    return elements<float>(parts[part])
        .subspan(static_cast<std::size_t>(piece.at), static_cast<std::size_t>(piece.elems));
  };
  return {state(0), state(1), state(kMaster)};
}

std::span<float> StateForm::masters(const Parts& parts, const ChunkPiece& piece) const {
  const auto elems = static_cast<std::size_t>(piece.elems);
  if (!is_plain()) return elements_at<float>(parts, 2 * moment_bytes(), piece, 0, elems);
  return elements<float>(parts[kMaster]).subspan(static_cast<std::size_t>(piece.at), elems);
}

std::span<std::byte> StateForm::weight(const Parts& parts, const ChunkPiece& piece) const {
  if (!narrow_masters_) return std::as_writable_bytes(masters(parts, piece));
  const auto elems = static_cast<std::size_t>(piece.elems);
  return std::as_writable_bytes(elements_at<bf16>(parts, 2 * moment_bytes(), piece, 0, elems));
}

Blocks8 StateForm::blocks(const Parts& parts, const ChunkPiece& piece, std::size_t state,
                          std::size_t first, std::size_t elems) const {
  const std::size_t begin = state * moment_bytes();
  const std::size_t count = (elems + kStateBlock - 1) / kStateBlock;
  const std::size_t at = static_cast<std::size_t>(piece.at) + first;
  const std::size_t scale_at = begin + elems_ + at / kStateBlock * sizeof(float);
  return {elements_at<std::uint8_t>(parts, begin, piece, first, count * kStateBlock),
          elements<float>(parts[0].subspan(scale_at, count * sizeof(float)))};
}

void StateForm::load(const Parts& parts, const ChunkPiece& piece, std::size_t first,
                     const PieceState& tile) const {
  const std::size_t elems = tile[0].size();
  if (codec_ == StateCodec::k8Bit) {
    cpu::load_state(blocks(parts, piece, 0, first, elems), Companding::kSigned, tile[0]);
    cpu::load_state(blocks(parts, piece, 1, first, elems), Companding::kPositive, tile[1]);
  } else {
    for (std::size_t i = 0; i < kMaster; ++i) {
      cpu::load_state(elements_at<bf16>(parts, i * moment_bytes(), piece, first, elems), tile[i]);
    }
  }
  const std::size_t begin = 2 * moment_bytes();
  if (!narrow_masters_) {
    std::ranges::copy(elements_at<float>(parts, begin, piece, first, elems), tile[kMaster].begin());
    return;
  }
  const std::span<bf16> hi = elements_at<bf16>(parts, begin, piece, first, elems);
  if (codec_ == StateCodec::kBf16) return cpu::load_state(hi, tile[kMaster]);
  const std::size_t low = begin + elems_ * sizeof(bf16);
  cpu::load_state({hi, elements_at<std::uint8_t>(parts, low, piece, first, elems)}, tile[kMaster]);
}

void StateForm::store(const Parts& parts, const ChunkPiece& piece, std::size_t first,
                      const PieceState& tile, const NoiseKey& key) const {
  const std::size_t elems = tile[0].size();
  std::array<std::uint16_t, kTileElems> drawn;
  const auto bits = std::span(drawn).first(round_up(elems, kStateBlock));
  NoiseKey of_rounding = key;
  of_rounding.purpose = kRoundingPurpose;
  cpu::fill_bits(of_rounding, static_cast<std::uint64_t>(piece.first) + first, bits);
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
                       elements_at<bf16>(parts, i * moment_bytes(), piece, first, elems));
    }
  }
  const std::size_t begin = 2 * moment_bytes();
  if (!narrow_masters_) {
    std::ranges::copy(tile[kMaster], elements_at<float>(parts, begin, piece, first, elems).begin());
    return;
  }
  const std::span<bf16> hi = elements_at<bf16>(parts, begin, piece, first, elems);
  if (codec_ == StateCodec::kBf16) return cpu::store_state(tile[kMaster], noise(kMaster), hi);
  const std::size_t low = begin + elems_ * sizeof(bf16);
  cpu::store_state(tile[kMaster], noise(kMaster),
                   Split24{hi, elements_at<std::uint8_t>(parts, low, piece, first, elems)});
}

}  // namespace sluiceway
