// Fills memory that nobody owns any more, in test runs that look for stale pointers.
//
// In an eager-spill run what is given back, and what starts without contents, becomes 0xCD: a stale
// pointer reads garbage at once instead of yesterday's bytes. Such a run is one of a build with
// -DSLUICEWAY_EAGER_SPILL=ON under the environment variable of the same name, neither empty nor 0;
// others do nothing.
#pragma once

#include <cstddef>

namespace sluiceway {

inline constexpr std::byte kScribble{0xCD};

bool asks_for_scribbles(const char* value) noexcept;  // Null: the variable is not set.
bool scribbles() noexcept;  // Whether this run does; the environment is asked once.
void scribble(std::byte* bytes, std::size_t size) noexcept;

}  // namespace sluiceway
