// Overwrites memory that nobody owns any more, in test runs that look for stale pointers.
//
// In an eager-spill run, memory that is freed or starts without contents becomes 0xCD, so a stale
// pointer reads garbage at once instead of old bytes. Such a run needs a build with
// -DSLUICEWAY_EAGER_SPILL=ON and the environment variable of the same name, neither empty nor 0; in
// other runs these functions do nothing.
#pragma once

#include <cstddef>

namespace sluiceway {

inline constexpr std::byte kScribble{0xCD};

bool asks_for_scribbles(const char* value) noexcept;  // Null: the variable is not set.
bool scribbles() noexcept;  // True in an eager-spill run; reads the environment once.
void scribble(std::byte* bytes, std::size_t size) noexcept;

}  // namespace sluiceway
