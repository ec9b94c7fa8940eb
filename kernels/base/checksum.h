// XXH3 checksums: 128 bits over bytes that arrive piece by piece, so that a file of any size takes
// little memory, and 64 bits over bytes that are all in memory.
//
// Ownership:     owns its state; pieces are read before update() returns.
// Thread safety: one thread at a time.
// Numerics:      seed 0; equal on every machine and in every release, however the bytes were cut.
#pragma once

#include <array>
#include <concepts>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>

namespace sluiceway {

class Checksum {
 public:
  Checksum();
  ~Checksum();
  Checksum(const Checksum&) = delete;
  Checksum& operator=(const Checksum&) = delete;

  void update(std::span<const std::byte> bytes) noexcept;

  // The checksum of everything so far: its bytes in the order in which `xxh128sum` prints them, and
  // as 32 hex digits.
  std::array<std::byte, 16> digest() const;
  std::string hex() const;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

// Formats a checksum for error texts, with as many hex digits as the type holds.
template <std::unsigned_integral T>
std::string to_hex(T value) {
  constexpr char kDigits[] = "0123456789abcdef";
  std::string text(2 * sizeof(T), '0');
  for (std::size_t i = text.size(); i-- > 0; value = static_cast<T>(value >> 4)) {
    text[i] = kDigits[value & 15];
  }
  return text;
}

std::uint64_t checksum64(std::span<const std::byte> bytes) noexcept;

}  // namespace sluiceway
