// One side of a weight, and the projector that belongs to it.
#pragma once

#include <cstdint>

namespace sluiceway {

enum class Side : std::uint8_t { kRows, kColumns };  // Rows of G make P, its columns make Q.

}  // namespace sluiceway
