#include "runtime/memory/scribble.h"

#include <cstring>

namespace sluiceway {

#ifdef SLUICEWAY_EAGER_SPILL

bool scribbles() noexcept { return true; }

void scribble(std::byte* bytes, std::size_t size) noexcept {
  if (size > 0) std::memset(bytes, std::to_integer<int>(kScribble), size);
}

#else

bool scribbles() noexcept { return false; }

void scribble(std::byte*, std::size_t) noexcept {}

#endif

}  // namespace sluiceway
