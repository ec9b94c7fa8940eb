#include "runtime/engine/zo/weight_places.h"

#include <algorithm>
#include <map>
#include <numeric>

#include "kernels/base/check.h"
#include "runtime/device/device_memory.h"
#include "runtime/engine/zo/resident_set.h"

namespace sluiceway {

std::vector<int> first_uses(std::span<const ZoWeight> uses) {
  std::map<const std::byte*, int> by_storage;
  std::vector<int> first;
  for (std::size_t i = 0; i < uses.size(); ++i) {
    const ZoWeight& use = uses[i];
    SLUICEWAY_CHECK(use.elements > 0 && use.host != nullptr, "zo: weight ", use.name, " has ",
                    use.elements, " elements at ", use.host, ", expected some, in memory");
    SLUICEWAY_CHECK(use.group >= 0, "zo: weight ", use.name, " is of group ", use.group,
                    ", expected 0 or more");
    const auto* const storage = static_cast<const std::byte*>(use.host);
    const auto [same, is_new] = by_storage.emplace(storage, static_cast<int>(i));
    const ZoWeight& other = uses[static_cast<std::size_t>(same->second)];
    SLUICEWAY_CHECK(
        other.elements == use.elements && other.dtype == use.dtype && other.group == use.group,
        "zo: weights ", other.name, " and ", use.name, " share their storage but are of ",
        other.elements, " ", to_string(other.dtype), " and ", use.elements, " ",
        to_string(use.dtype), " elements in groups ", other.group, " and ", use.group,
        ", expected one weight");
    first.push_back(same->second);
  }
  const std::byte* end = nullptr;
  for (const auto& [storage, i] : by_storage) {
    const ZoWeight& use = uses[static_cast<std::size_t>(i)];
    SLUICEWAY_CHECK(end == nullptr || storage >= end, "zo: weight ", use.name, " begins ",
                    end - storage, " bytes before another ends, expected none or all in common");
    end = storage + use.bytes();
  }
  return first;
}

std::vector<bool> staying(std::span<const ZoWeight> uses, std::span<const int> first_use,
                          RingDepth depth, std::uint64_t most, std::uint64_t device_bytes) {
  std::vector<bool> stays(uses.size());
  std::uint64_t kept_bytes = 0;
  for (std::size_t i = 0; i < uses.size(); ++i) {  // One that is kept in any of its uses stays.
    const auto first = static_cast<std::size_t>(first_use[i]);
    if (!uses[i].keep || stays[first]) continue;
    stays[first] = true;
    kept_bytes += round_up(uses[i].bytes(), SlotPlan::kSlotAlignment);
  }
  const auto follow_first = [&] {
    for (std::size_t i = 0; i < uses.size(); ++i) {
      stays[i] = stays[static_cast<std::size_t>(first_use[i])];
    }
  };
  follow_first();
  // Others that stay need no arrival slots any more, so the ring does not grow with them.
  const std::uint64_t taken = kept_bytes + plan_slots(uses, stays, depth).bytes;
  const std::uint64_t room = std::min(most, device_bytes - std::min(device_bytes, taken));
  std::vector<std::uint64_t> bytes;
  std::vector<std::size_t> candidates;
  for (std::size_t i = 0; i < uses.size(); ++i) {
    if (stays[i] || static_cast<std::size_t>(first_use[i]) != i) continue;
    candidates.push_back(i);
    bytes.push_back(round_up(uses[i].bytes(), SlotPlan::kSlotAlignment));
  }
  const std::vector<bool> chosen = choose_resident(bytes, room);
  for (std::size_t k = 0; k < candidates.size(); ++k) stays[candidates[k]] = chosen[k];
  follow_first();
  return stays;
}

SlotPlan plan_slots(std::span<const ZoWeight> uses, const std::vector<bool>& stays,
                    RingDepth depth) {
  std::vector<SlotUse> slots;
  for (std::size_t i = 0; i < uses.size(); ++i) {
    slots.push_back({uses[i].bytes(), uses[i].module, !stays[i]});
  }
  return plan_slots(slots, depth);
}

}  // namespace sluiceway
