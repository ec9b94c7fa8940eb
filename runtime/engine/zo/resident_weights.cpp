#include "runtime/engine/zo/resident_weights.h"

#include <algorithm>
#include <utility>

namespace sluiceway {

ResidentWeights::ResidentWeights(EngineLanes& lanes, RingHops& hops, std::span<const ZoWeight> uses,
                                 std::span<const int> first_use, const std::vector<bool>& stays)
    : places_(uses.size()) {
  std::uint64_t most = 0;
  for (std::size_t use = 0; use < uses.size(); ++use) {
    if (stays[use]) most = std::max(most, hops.read_bytes(static_cast<int>(use)));
  }
  const Buffer staging(lanes.budget(), Tier::kPinned, lanes.device(), most,
                       "staging of resident weights", Fill::kNone);
  try {
    for (std::size_t use = 0; use < uses.size(); ++use) {
      const auto first = static_cast<std::size_t>(first_use[use]);
      if (!stays[use]) continue;
      if (first == use) {
        buffers_.emplace_back(lanes.budget(), Tier::kDevice, lanes.device(), uses[use].bytes(),
                              "the resident " + uses[use].name, Fill::kNone);
        const int index = static_cast<int>(use);
        const std::byte* const read = hops.read_bytes(index) > 0 ? staging.data() : nullptr;
        Payload payload;
        payload.name = uses[use].name;
        if (read != nullptr) payload.hops.push_back(hops.read(index, staging.data(), nullptr));
        payload.hops.push_back(hops.copy(index, read, buffers_.back().data(), {}));
        lanes.executor().submit(std::move(payload));
        lanes.executor().wait(0);
        places_[use] = buffers_.back().data();
      }
      places_[use] = places_[first];
    }
  } catch (...) {  // An interrupt ends a wait, and lanes still write.
    lanes.stop();
    throw;
  }
}

}  // namespace sluiceway
