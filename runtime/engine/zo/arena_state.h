// The bytes that a commit of an arena stores beside its chunks: which theta the chunks hold, and
// the run's own bytes.
//
// docs/zo_log.md section 6 has the grammar.
//
// Thread safety: pure functions.
// Errors:        Corrupt: bytes that encode() does not produce; the text names the fault.
//                Unavailable: a version that this build does not read.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "runtime/engine/zo/arena_plan.h"
#include "runtime/engine/zo/scalar_log.h"

namespace sluiceway {

inline constexpr std::uint32_t kArenaStateVersion = 1;
inline constexpr std::uint64_t kArenaStateBytes = 80;  // Without the run's own bytes.

struct ArenaState {
  ArenaBase arena;
  std::vector<std::byte> run;  // What the run needs to continue; opaque.
};

std::vector<std::byte> encode(const ArenaState& state);
ArenaState decode_arena_state(std::span<const std::byte> bytes);

// Returns the bytes that identify a weight in a base's hash; they precede its content.
std::vector<std::byte> hashed_header(const ArenaWeight& weight);

}  // namespace sluiceway
