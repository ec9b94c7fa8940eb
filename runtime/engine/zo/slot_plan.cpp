#include "runtime/engine/zo/slot_plan.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "kernels/base/check.h"
#include "runtime/device/device_memory.h"

namespace sluiceway {
namespace {

// Most uses of these sizes in any `depth` consecutive modules, round the end of the forward.
int most_at_once(std::span<const SlotUse> uses, int depth, std::uint64_t above, std::uint64_t up_to,
                 bool streamed_only) {
  std::vector<int> by_module;  // Of modules that have a use at all.
  int last = 0;
  for (const SlotUse& use : uses) {
    if (by_module.empty() || use.module != last) by_module.push_back(0);
    last = use.module;
    if (use.bytes > above && use.bytes <= up_to && (use.streamed || !streamed_only)) {
      ++by_module.back();
    }
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
  return {round_up(up_to, SlotPlan::kSlotAlignment),
          most_at_once(uses, depth.arrivals, above, up_to, true),
          most_at_once(uses, depth.pairs, above, up_to, false)};
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
  SLUICEWAY_CHECK(depth.arrivals >= 1 && depth.pairs >= 1, "plan_slots: depths are ",
                  depth.arrivals, " modules of arrivals and ", depth.pairs,
                  " of pairs, expected at least 1 of each");
  std::vector<std::uint64_t> sizes;
  for (std::size_t i = 0; i < uses.size(); ++i) {
    SLUICEWAY_CHECK(uses[i].bytes > 0, "plan_slots: use ", i, " has 0 bytes, expected some");
    SLUICEWAY_CHECK(i == 0 || uses[i - 1].module <= uses[i].module, "plan_slots: use ", i,
                    " is of module ", uses[i].module, ", expected at least ",
                    i == 0 ? 0 : uses[i - 1].module, ", that of the use before");
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
  int slots = 0;
  for (const SlotClass& c : plan.classes) slots += c.arrivals + 2 * c.pairs;
  const auto percent = [](double part) { return std::lround(100 * part); };
  return concat("ring: ", plan.classes.size(), " classes, ", slots, " slots, ",
                format_bytes(plan.bytes), ", ", percent(plan.waste),
                " % waste; slots of the largest size: ", format_bytes(plan.uniform_bytes), ", ",
                percent(plan.uniform_waste), " % waste");
}

}  // namespace sluiceway
