// One side of a weight and the projector for it.
#pragma once

#include <cstdint>

namespace sluiceway {

enum class Side : std::uint8_t { kRows, kColumns };  // Rows of G define P, its columns Q.

}  // namespace sluiceway
