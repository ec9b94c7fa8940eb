// Which weights stay on the device, where there is room for some: as many bytes as fit, spread
// evenly among those that stream, so that the link has the same to do all along the forward.
//
// Thread safety: pure function.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

namespace sluiceway {

// By weight, in the order of the forward. The bytes of what is chosen are at most `room`, and no
// other weight would fit beside them.
std::vector<bool> choose_resident(std::span<const std::uint64_t> bytes, std::uint64_t room);

}  // namespace sluiceway
