// The roof of a drive: a loop over a bare io_uring, without anything that a store needs.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>

namespace sluiceway::bench {

// What is moved in a round: request i is block i of a file of `blocks`, wrapping; even ones read
// and odd ones write, `depth` of them at once, each with its own block of `memory`.
struct Round {
  std::string path;
  std::size_t block_bytes = std::size_t{4} << 20;
  std::uint64_t blocks = 0;
  std::uint64_t requests = 0;
  std::size_t depth = 0;
  std::span<std::byte> memory;  // depth * block_bytes, registered with the ring if it lets us.
};

// Seconds that it takes. Throws IoError if anything but whole blocks is transferred.
double seconds_of_bare_loop(const Round& round);

}  // namespace sluiceway::bench
