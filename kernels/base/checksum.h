// XXH3: of 128 bits over bytes that come piece by piece, so that a file of any size takes little
// memory, and of 64 bits over bytes that are all there.
//
// Ownership:     owns its state; pieces are read before update() returns.
// Thread safety: one thread at a time.
// Numerics:      seed 0; equal on every machine and in every release, whatever the pieces were.
#pragma once

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

  // Of everything so far: 32 hex digits, as `xxh128sum` prints them.
  std::string hex() const;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

std::uint64_t checksum64(std::span<const std::byte> bytes) noexcept;

}  // namespace sluiceway
