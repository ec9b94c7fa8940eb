#include "runtime/engine/zo/slot_plan.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "kernels/base/check.h"
#include "runtime/device/device_memory.h"

namespace sluiceway {
namespace {

// Most of those uses in any `depth` consecutive modules, round the end of the forward.
int most_at_once(std::span<const SlotUse> uses, int depth, const auto& is_one) {
  std::vector<int> by_module;  // Of modules that have a use at all.
  int last = 0;
  for (const SlotUse& use : uses) {
    if (by_module.empty() || use.module != last) by_module.push_back(0);
    last = use.module;
    if (is_one(use)) ++by_module.back();
  }
  const std::size_t modules = by_module.size();
  const std::size_t window = std::min(static_cast<std::size_t>(depth), modules);
  int most = 0;
  for (std::size_t first = 0; first < modules; ++first) {
    int inside = 0;
    for (std::size_t i = 0; i < window; ++i) inside += by_module[(first + i) % modules];
    most = std::max(most, inside);
  }
  return most;
}

SlotClass make_class(std::span<const SlotUse> uses, RingDepth depth, std::uint64_t above,
                     std::uint64_t up_to) {
  const auto of_class = [&](const SlotUse& u) { return u.bytes > above && u.bytes <= up_to; };
  const auto arrives = [&](const SlotUse& u) { return of_class(u) && u.streamed; };
  const auto is_read = [&](const SlotUse& u) { return arrives(u) && u.read_bytes > 0; };
  SlotClass made;
  made.slot_bytes = round_up(up_to, SlotPlan::kSlotAlignment);
  made.arrivals = most_at_once(uses, depth.arrivals, arrives);
  made.pairs = most_at_once(uses, depth.pairs, of_class);
  made.staging = most_at_once(uses, depth.staging, is_read);
  std::uint64_t most = 0;
  for (const SlotUse& use : uses) {
    if (is_read(use)) most = std::max(most, use.read_bytes);
  }
  made.staging_slot_bytes = round_up(most, SlotPlan::kStagingAlignment);
  return made;
}

double mean_waste(std::span<const SlotUse> uses, const auto& slot_bytes) {
  double filled = 0, held = 0;
  for (std::size_t i = 0; i < uses.size(); ++i) {
    filled += static_cast<double>(uses[i].bytes);
    held += static_cast<double>(slot_bytes(i));
  }
  return held > 0 ? 1 - filled / held : 0;
}

}  // namespace

SlotPlan plan_slots(std::span<const SlotUse> uses, RingDepth depth) {
  SLUICEWAY_CHECK(depth.arrivals >= 1 && depth.pairs >= 1 && depth.staging >= 1,
                  "plan_slots: depths are ", depth.arrivals, " modules of arrivals, ", depth.pairs,
                  " of pairs and ", depth.staging, " of staging, expected at least 1 of each");
  std::vector<std::uint64_t> sizes;
  for (std::size_t i = 0; i < uses.size(); ++i) {
    SLUICEWAY_CHECK(uses[i].bytes > 0, "plan_slots: use ", i, " has 0 bytes, expected some");
    SLUICEWAY_CHECK(i == 0 || uses[i - 1].module <= uses[i].module, "plan_slots: use ", i,
                    " is of module ", uses[i].module, ", expected at least ",
                    i == 0 ? 0 : uses[i - 1].module, ", that of the use before");
    SLUICEWAY_CHECK(uses[i].read_bytes == 0 || uses[i].read_bytes >= uses[i].bytes,
                    "plan_slots: use ", i, " is read as ", uses[i].read_bytes,
                    " bytes, expected at least its ", uses[i].bytes);
    sizes.push_back(uses[i].bytes);
  }
  std::sort(sizes.begin(), sizes.end());
  sizes.erase(std::unique(sizes.begin(), sizes.end()), sizes.end());
  const std::size_t count = sizes.size();
  const auto below = [&](std::size_t i) { return i == 0 ? 0 : sizes[i - 1]; };

  // fewest[k]: bytes of the best classes for the k smallest sizes; begin[k]: where the last begins.
  std::vector<std::uint64_t> fewest(count + 1, std::numeric_limits<std::uint64_t>::max());
  std::vector<std::size_t> begin(count + 1, 0);
  fewest[0] = 0;
  for (std::size_t end = 1; end <= count; ++end) {
    for (std::size_t first = 0; first < end; ++first) {
      const std::uint64_t bytes =
          fewest[first] + make_class(uses, depth, below(first), sizes[end - 1]).bytes();
      if (bytes >= fewest[end]) continue;
      fewest[end] = bytes;
      begin[end] = first;
    }
  }
  SlotPlan plan;
  std::vector<std::uint64_t> limits;
  for (std::size_t end = count; end > 0; end = begin[end]) {
    plan.classes.push_back(make_class(uses, depth, below(begin[end]), sizes[end - 1]));
    limits.push_back(sizes[end - 1]);
  }
  std::reverse(plan.classes.begin(), plan.classes.end());
  std::reverse(limits.begin(), limits.end());
  for (const SlotUse& use : uses) {
    const auto found = std::lower_bound(limits.begin(), limits.end(), use.bytes);
    plan.class_of.push_back(static_cast<int>(found - limits.begin()));
  }
  plan.bytes = fewest[count];
  for (const SlotClass& c : plan.classes) plan.staging_bytes += c.staging_bytes();
  if (count == 0) return plan;
  const SlotClass uniform = make_class(uses, depth, 0, sizes.back());
  plan.uniform_bytes = uniform.bytes();
  plan.waste = mean_waste(uses, [&](std::size_t i) {
    return plan.classes[static_cast<std::size_t>(plan.class_of[i])].slot_bytes;
  });
  plan.uniform_waste = mean_waste(uses, [&](std::size_t) { return uniform.slot_bytes; });
  return plan;
}

std::string to_string(const SlotPlan& plan) {
  int slots = 0, staging = 0;
  for (const SlotClass& c : plan.classes) {
    slots += c.arrivals + 2 * c.pairs;
    staging += c.staging;
  }
  const auto percent = [](double part) { return std::lround(100 * part); };
  std::string line =
      concat("ring: ", plan.classes.size(), " classes, ", slots, " slots, ",
             format_bytes(plan.bytes), ", ", percent(plan.waste),
             " % waste; slots of the largest size: ", format_bytes(plan.uniform_bytes), ", ",
             percent(plan.uniform_waste), " % waste");
  if (staging == 0) return line;
  return concat(line, "; ", staging, " staging slots, ", format_bytes(plan.staging_bytes));
}

}  // namespace sluiceway
