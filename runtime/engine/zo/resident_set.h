// Chooses the weights that stay on the device if there is room: as many bytes as fit, spread evenly
// among the streamed ones, so that the link has equal work throughout the forward.
//
// Thread safety: pure function.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

namespace sluiceway {

// Returns the choice by weight, in the order of the forward. The chosen bytes are at most `room`,
// and no other weight would fit beside them.
std::vector<bool> choose_resident(std::span<const std::uint64_t> bytes, std::uint64_t room);

}  // namespace sluiceway
