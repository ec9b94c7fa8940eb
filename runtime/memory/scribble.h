// Fills memory that nobody owns any more, in the build that looks for stale pointers.
//
// In the eager-spill build what is given back, and what starts without contents, becomes 0xCD: a
// stale pointer reads garbage at once instead of yesterday's bytes. Other builds do nothing.
#pragma once

#include <cstddef>

namespace sluiceway {

inline constexpr std::byte kScribble{0xCD};

bool scribbles() noexcept;  // Whether this build does.
void scribble(std::byte* bytes, std::size_t size) noexcept;

}  // namespace sluiceway
