// Weights that stay on the device, brought there once through the lanes.
//
// Errors: OutOfMemory, with both byte counts; exceptions of a lane, with lane and weight named.
#pragma once

#include <cstddef>
#include <span>
#include <vector>

#include "runtime/engine/engine_lanes.h"
#include "runtime/engine/zo/ring_hops.h"
#include "runtime/engine/zo/zo_weight.h"
#include "runtime/memory/buffer.h"

namespace sluiceway {

class ResidentWeights {
 public:
  // Blocks until all are there. Weights that are read need staging for the largest one meanwhile.
  ResidentWeights(EngineLanes& lanes, RingHops& hops, std::span<const ZoWeight> uses,
                  std::span<const int> first_use, const std::vector<bool>& stays);

  std::byte* of(int use) const { return places_.at(static_cast<std::size_t>(use)); }

 private:
  std::vector<Buffer> buffers_;
  std::vector<std::byte*> places_;  // By use; null: it does not stay.
};

}  // namespace sluiceway
