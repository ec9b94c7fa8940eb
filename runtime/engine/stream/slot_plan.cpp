#include "runtime/engine/stream/slot_plan.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "kernels/base/check.h"
#include "runtime/device/device_memory.h"

namespace sluiceway {
namespace {

// The sum over the uses of each module that has one at all.
std::vector<std::uint64_t> by_module(std::span<const SlotUse> uses, const auto& count) {
  std::vector<std::uint64_t> sums;
  int last = 0;
  for (const SlotUse& use : uses) {
    if (sums.empty() || use.module != last) sums.push_back(0);
    last = use.module;
    sums.back() += count(use);
  }
  return sums;
}

// How many modules, from each on and round the end of the forward, have arrival slots at once.
std::vector<int> arriving(std::span<const SlotUse> uses, const RingDepth& depth) {
  const std::vector<std::uint64_t> bytes =
      by_module(uses, [](const SlotUse& use) { return use.streamed ? use.bytes : 0; });
  std::vector<int> spans;
  for (std::size_t first = 0; first < bytes.size(); ++first) {
    std::size_t meanwhile = 0;  // Modules that cross while this one goes back.
    for (std::uint64_t left = bytes[first]; left > 0 && meanwhile < bytes.size();) {
      left -= std::min(left, bytes[(first + ++meanwhile) % bytes.size()]);
    }
    const int behind = std::max(depth.arrivals, static_cast<int>(meanwhile));
    spans.push_back(depth.goes_back ? 1 + behind : depth.arrivals);
  }
  return spans;
}

// Most of those uses in any so many consecutive modules; the last of `spans` is that of all others.
int most_at_once(std::span<const SlotUse> uses, const std::vector<int>& spans, const auto& is_one) {
  const std::vector<std::uint64_t> ones =
      by_module(uses, [&](const SlotUse& use) { return is_one(use) ? 1U : 0U; });
  std::uint64_t most = 0;
  for (std::size_t first = 0; first < ones.size(); ++first) {
    const auto span = static_cast<std::size_t>(spans[std::min(first, spans.size() - 1)]);
    std::uint64_t inside = 0;
    for (std::size_t i = 0; i < std::min(span, ones.size()); ++i) {
      inside += ones[(first + i) % ones.size()];
    }
    most = std::max(most, inside);
  }
  return static_cast<int>(most);
}

SlotClass make_class(std::span<const SlotUse> uses, RingDepth depth, std::uint64_t above,
                     std::uint64_t up_to) {
  const auto of_class = [&](const SlotUse& u) { return u.bytes > above && u.bytes <= up_to; };
  const auto arrives = [&](const SlotUse& u) { return of_class(u) && u.streamed; };
  const auto is_read = [&](const SlotUse& u) { return arrives(u) && u.read_bytes > 0; };
  SlotClass made;
  made.slot_bytes = round_up(up_to, SlotPlan::kSlotAlignment);
  made.arrivals = depth.direct ? 0 : most_at_once(uses, arriving(uses, depth), arrives);
  made.copies = depth.direct ? 1 : 2;
  made.pairs = most_at_once(uses, {depth.pairs}, of_class);
  made.staging = depth.direct ? 0 : most_at_once(uses, {depth.staging}, is_read);
  std::uint64_t most = 0, most_copied = 0;
  for (const SlotUse& use : uses) {
    if (is_read(use)) most = std::max(most, use.read_bytes);
    if (!of_class(use)) continue;
    most_copied = std::max(most_copied, use.copy_bytes > 0 ? use.copy_bytes : use.bytes);
  }
  made.copy_slot_bytes = round_up(most_copied, SlotPlan::kSlotAlignment);
  made.staging_slot_bytes = round_up(most, SlotPlan::kStagingAlignment);
  return made;
}

void check_uses(std::span<const SlotUse> uses, const RingDepth& depth) {
  SLUICEWAY_CHECK(depth.arrivals >= 1 && depth.pairs >= 1 && depth.staging >= 1,
                  "plan_slots: depths are ", depth.arrivals, " modules of arrivals, ", depth.pairs,
                  " of pairs and ", depth.staging, " of staging, expected at least 1 of each");
  for (std::size_t i = 0; i < uses.size(); ++i) {
    SLUICEWAY_CHECK(uses[i].bytes > 0, "plan_slots: use ", i, " has 0 bytes, expected 1 or more");
    SLUICEWAY_CHECK(i == 0 || uses[i - 1].module <= uses[i].module, "plan_slots: use ", i,
                    " is of module ", uses[i].module, ", expected at least ",
                    i == 0 ? 0 : uses[i - 1].module, ", the module of the use before");
    SLUICEWAY_CHECK(uses[i].read_bytes == 0 || uses[i].read_bytes >= uses[i].bytes,
                    "plan_slots: use ", i, " is read as ", uses[i].read_bytes,
                    " bytes, expected at least ", uses[i].bytes);
    SLUICEWAY_CHECK(!depth.direct || uses[i].read_bytes == 0 || uses[i].part_bytes > 0,
                    "plan_slots: use ", i, " is read in parts of 0 bytes, expected 1 or more");
  }
}

// Parts share slots: at least two, so that one is read while another crosses.
void plan_parts(SlotPlan& plan, std::span<const SlotUse> uses) {
  std::vector<int> most(plan.classes.size());
  for (std::size_t i = 0; i < uses.size(); ++i) {
    plan.part_slot_bytes = std::max(plan.part_slot_bytes, uses[i].part_bytes);
    int& parts = most[static_cast<std::size_t>(plan.class_of[i])];
    parts = std::max(parts, uses[i].parts());
  }
  if (plan.part_slot_bytes == 0) return;  // Nothing is read.
  for (std::size_t i = 0; i < most.size(); ++i) plan.most_parts += most[i] * plan.classes[i].pairs;
  plan.part_slot_bytes = round_up(plan.part_slot_bytes, SlotPlan::kStagingAlignment);
  const auto room = static_cast<int>(SlotPlan::kPartsBytes / plan.part_slot_bytes);
  plan.part_slots = std::max(2, std::min(room, plan.most_parts));
  plan.staging_bytes = plan.part_slot_bytes * static_cast<std::uint64_t>(plan.part_slots);
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
  check_uses(uses, depth);
  std::vector<std::uint64_t> sizes;
  for (const SlotUse& use : uses) sizes.push_back(use.bytes);
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
  if (depth.direct) plan_parts(plan, uses);
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
    slots += c.arrivals + c.copies * c.pairs;
    staging += c.staging;
  }
  staging += plan.part_slots;
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
