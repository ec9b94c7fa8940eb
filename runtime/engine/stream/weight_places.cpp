#include "runtime/engine/stream/weight_places.h"

#include <algorithm>
#include <cstddef>
#include <map>
#include <numeric>

#include "kernels/base/check.h"
#include "runtime/device/device_memory.h"

namespace sluiceway {

std::vector<bool> choose_resident(std::span<const std::uint64_t> bytes, std::uint64_t room) {
  std::vector<bool> chosen(bytes.size());
  const double total =
      static_cast<double>(std::accumulate(bytes.begin(), bytes.end(), std::uint64_t{0}));
  if (total == 0) return chosen;
  // A weight is taken when half of it is due: the share of all bytes so far that has its room.
  const double share = static_cast<double>(room) / total;
  double due = 0;
  std::uint64_t left = room;
  for (std::size_t i = 0; i < bytes.size(); ++i) {
    due += share * static_cast<double>(bytes[i]);
    if (due < 0.5 * static_cast<double>(bytes[i]) || bytes[i] > left) continue;
    chosen[i] = true;
    left -= bytes[i];
    due -= static_cast<double>(bytes[i]);
  }
  for (std::size_t i = 0; i < bytes.size(); ++i) {  // What is left over.
    if (chosen[i] || bytes[i] > left) continue;
    chosen[i] = true;
    left -= bytes[i];
  }
  return chosen;
}

std::vector<int> first_uses(std::span<const StreamedWeight> uses) {
  std::map<const std::byte*, int> in_memory;
  std::map<int, int> in_source;
  std::vector<int> first;
  for (std::size_t i = 0; i < uses.size(); ++i) {
    const StreamedWeight& use = uses[i];
    SLUICEWAY_CHECK(use.elements > 0 && (use.host != nullptr) == (use.source < 0), "ring: weight ",
                    use.name, " has ", use.elements, " elements at ", use.host, " and is number ",
                    use.source,
                    " of the source, expected 1 or more elements, either in "
                    "memory or in the source");
    SLUICEWAY_CHECK(use.group >= 0, "ring: weight ", use.name, " is of group ", use.group,
                    ", expected 0 or more");
    const auto* const storage = static_cast<const std::byte*>(use.host);
    const int index = static_cast<int>(i);
    const int same = storage != nullptr ? in_memory.emplace(storage, index).first->second
                                        : in_source.emplace(use.source, index).first->second;
    const StreamedWeight& other = uses[static_cast<std::size_t>(same)];
    SLUICEWAY_CHECK(other.elements == use.elements && other.form == use.form &&
                        other.group == use.group && other.copy_dtype() == use.copy_dtype(),
                    "ring: weights ", other.name, " and ", use.name,
                    " share their storage but are of ", other.elements, " ", to_string(other.form),
                    " and ", use.elements, " ", to_string(use.form), " elements in groups ",
                    other.group, " and ", use.group, ", expected the same for both");
    first.push_back(same);
  }
  const std::byte* end = nullptr;
  for (const auto& [storage, i] : in_memory) {
    const StreamedWeight& use = uses[static_cast<std::size_t>(i)];
    SLUICEWAY_CHECK(end == nullptr || storage >= end, "ring: weight ", use.name, " begins ",
                    end - storage,
                    " bytes before another ends; weights must share all of "
                    "their memory or none");
    end = storage + use.bytes();
  }
  return first;
}

std::vector<ReadSize> read_sizes(std::span<const StreamedWeight> uses, const WeightSource* source) {
  std::vector<ReadSize> sizes;
  for (const StreamedWeight& use : uses) {
    SLUICEWAY_CHECK(use.source < 0 || source != nullptr, "ring: weight ", use.name, " is number ",
                    use.source, " of a source, but the options have no source; set one");
    ReadSize& size = sizes.emplace_back();
    if (use.source < 0) continue;
    const auto index = static_cast<std::size_t>(use.source);
    size = {source->read_bytes(index), source->part_bytes(index)};
    SLUICEWAY_CHECK(size.bytes >= use.bytes(), "ring: weight ", use.name, " is read as ",
                    size.bytes, " bytes, expected at least ", use.bytes());
  }
  return sizes;
}

std::vector<bool> staying(std::span<const StreamedWeight> uses, std::span<const int> first_use,
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
  const std::uint64_t taken = kept_bytes + plan_slots(uses, stays, {}, depth).bytes;
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

SlotPlan plan_slots(std::span<const StreamedWeight> uses, const std::vector<bool>& stays,
                    std::span<const ReadSize> reads, RingDepth depth) {
  std::vector<SlotUse> slots;
  for (std::size_t i = 0; i < uses.size(); ++i) {
    const ReadSize read = i < reads.size() ? reads[i] : ReadSize{};
    slots.push_back({uses[i].bytes(), uses[i].module, !stays[i], read.bytes, uses[i].copy_bytes(),
                     read.part_bytes});
  }
  return plan_slots(slots, depth);
}

TurnOrder::TurnOrder(std::span<const StreamedWeight> uses) : modules_(uses.size()) {
  for (std::size_t first = 0, end = 0; first < uses.size(); first = end) {
    while (end < uses.size() && uses[end].module == uses[first].module) ++end;
    std::fill(modules_.begin() + static_cast<std::ptrdiff_t>(first),
              modules_.begin() + static_cast<std::ptrdiff_t>(end), Module{first, end - first});
  }
}

std::uint64_t TurnOrder::position(int use, int round, int rounds) const {
  const Module& module = modules_.at(static_cast<std::size_t>(use));
  return module.first * static_cast<std::uint64_t>(rounds) +
         module.count * static_cast<std::uint64_t>(round) +
         (static_cast<std::uint64_t>(use) - module.first);
}

int TurnOrder::first_round(int use, std::uint64_t from, int rounds) const {
  const std::uint64_t first = position(use, 0, rounds);
  if (from <= first) return 0;
  const std::uint64_t count = modules_.at(static_cast<std::size_t>(use)).count;
  const std::uint64_t behind = (from - first + count - 1) / count;
  return static_cast<int>(std::min(behind, static_cast<std::uint64_t>(rounds)));
}

}  // namespace sluiceway
