#include "runtime/memory/scribble.h"

#include <cstdlib>
#include <cstring>

namespace sluiceway {

bool asks_for_scribbles(const char* value) noexcept {
  return value != nullptr && *value != '\0' && std::strcmp(value, "0") != 0;
}

#ifdef SLUICEWAY_EAGER_SPILL

bool scribbles() noexcept {
  static const bool asked_for = asks_for_scribbles(std::getenv("SLUICEWAY_EAGER_SPILL"));
  return asked_for;
}

void scribble(std::byte* bytes, std::size_t size) noexcept {
  if (scribbles() && size > 0) std::memset(bytes, std::to_integer<int>(kScribble), size);
}

#else

bool scribbles() noexcept { return false; }

void scribble(std::byte*, std::size_t) noexcept {}

#endif

}  // namespace sluiceway
