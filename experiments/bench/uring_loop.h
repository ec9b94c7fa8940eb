// Measures the roof of a drive with a loop over a bare io_uring, without a store's other work.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>

namespace sluiceway::bench {

// Requests of a round: request i is block i of a file of `blocks`, wrapping. Even requests read and
// odd requests write, `depth` of them at once, each with its own block of `memory`.
struct Round {
  std::string path;
  std::size_t block_bytes = std::size_t{4} << 20;
  std::uint64_t blocks = 0;
  std::uint64_t requests = 0;
  std::size_t depth = 0;
  std::span<std::byte> memory;  // depth * block_bytes, registered with the ring if it lets us.
};

// Returns the seconds of a round. Throws IoError if a request transfers less than a whole block.
double seconds_of_bare_loop(const Round& round);

}  // namespace sluiceway::bench
