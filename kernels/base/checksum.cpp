#include "kernels/base/checksum.h"

#define XXH_INLINE_ALL
#include <xxhash.h>

#include <bit>

namespace sluiceway {

// Held by value in one allocation, which therefore has its alignment of 64 bytes.
struct Checksum::State {
  XXH3_state_t xxh3;
};

Checksum::Checksum() : state_(std::make_unique<State>()) { XXH3_128bits_reset(&state_->xxh3); }

Checksum::~Checksum() = default;

void Checksum::update(std::span<const std::byte> bytes) noexcept {
  if (!bytes.empty()) XXH3_128bits_update(&state_->xxh3, bytes.data(), bytes.size());
}

std::array<std::byte, 16> Checksum::digest() const {
  XXH128_canonical_t digest;  // Big endian, on every machine.
  XXH128_canonicalFromHash(&digest, XXH3_128bits_digest(&state_->xxh3));
  return std::bit_cast<std::array<std::byte, 16>>(digest);
}

std::string Checksum::hex() const {
  std::string text;
  for (const std::byte byte : digest()) text += to_hex(std::to_integer<std::uint8_t>(byte));
  return text;
}

std::uint64_t checksum64(std::span<const std::byte> bytes) noexcept {
  return XXH3_64bits(bytes.data(), bytes.size());
}

}  // namespace sluiceway
