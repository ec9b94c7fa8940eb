// plan_slots(): slots suffice for the modules that the ring spans, and no partition is smaller.
#include "runtime/engine/stream/slot_plan.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <random>

#include "kernels/base/error.h"
#include "tests/support/rng.h"

namespace sluiceway::test {
namespace {

using testing::HasSubstr;
using testing::Not;
using testing::ThrowsMessage;

std::vector<SlotUse> random_uses(Rng& rng) {
  std::vector<SlotUse> uses;
  const std::uint64_t sizes[] = {700, 1000, 5000, 5100, 90000};
  const std::int64_t count = 1 + rng.below(20);
  for (int module = 0; std::ssize(uses) < count; module += 1 + static_cast<int>(rng.below(2))) {
    for (std::int64_t k = 1 + rng.below(3); k > 0; --k) {
      const std::uint64_t bytes = sizes[rng.below(5)];
      uses.push_back({bytes, module, rng.below(3) > 0,
                      rng.below(2) > 0 ? bytes + static_cast<std::uint64_t>(rng.below(6000)) : 0});
    }
  }
  return uses;
}

TEST(SlotPlanTest, EveryUseFitsItsClassAndAnyConsecutiveModulesFitTheRing) {
  Rng rng(std::random_device{}());
  for (int round = 0; round < 200; ++round) {
    const std::vector<SlotUse> uses = random_uses(rng);
    const RingDepth depth{1 + static_cast<int>(rng.below(4)), 1 + static_cast<int>(rng.below(4)),
                          1 + static_cast<int>(rng.below(4))};
    const SlotPlan plan = plan_slots(uses, depth);
    std::uint64_t bytes = 0, staging_bytes = 0;
    for (const SlotClass& c : plan.classes) {
      bytes += c.bytes();
      staging_bytes += c.staging_bytes();
    }
    EXPECT_EQ(plan.bytes, bytes);
    EXPECT_EQ(plan.staging_bytes, staging_bytes);
    EXPECT_LE(plan.bytes, plan.uniform_bytes);
    EXPECT_LE(plan.waste, plan.uniform_waste + 1e-12);
    for (std::size_t first = 0; first < uses.size(); ++first) {
      if (first > 0 && uses[first - 1].module == uses[first].module) continue;
      std::vector<int> arrivals(plan.classes.size()), pairs(plan.classes.size()),
          staging(plan.classes.size());
      int modules = 0, last = -1;
      for (std::size_t i = first; i < uses.size(); ++i) {
        const auto c = static_cast<std::size_t>(plan.class_of[i]);
        EXPECT_GE(plan.classes[c].slot_bytes, uses[i].bytes);
        if (uses[i].module != last) ++modules;
        last = uses[i].module;
        if (modules <= depth.arrivals) arrivals[c] += uses[i].streamed ? 1 : 0;
        if (modules <= depth.pairs) ++pairs[c];
        if (!uses[i].streamed || uses[i].read_bytes == 0) continue;
        EXPECT_GE(plan.classes[c].staging_slot_bytes, uses[i].read_bytes);
        if (modules <= depth.staging) ++staging[c];
      }
      for (std::size_t c = 0; c < pairs.size(); ++c) {
        EXPECT_GE(plan.classes[c].arrivals, arrivals[c]);
        EXPECT_GE(plan.classes[c].pairs, pairs[c]);
        EXPECT_GE(plan.classes[c].staging, staging[c]);
      }
    }
  }
}

TEST(SlotPlanTest, ALargeWeightAmongSmallOnesHasAClassOfItsOwn) {
  const std::vector<SlotUse> uses = {{100000, 0}, {1000, 1}, {1000, 2}, {1000, 3}, {1000, 4}};
  const SlotPlan plan = plan_slots(uses, {2, 2});
  ASSERT_EQ(plan.classes.size(), 2U);
  EXPECT_EQ(plan.classes[0].slot_bytes, 1024U);
  EXPECT_EQ(plan.classes[0].arrivals, 2);
  EXPECT_EQ(plan.classes[1].pairs, 1);
  EXPECT_EQ(plan.bytes, 6U * 1024 + 3 * 100096);
  EXPECT_EQ(plan.uniform_bytes, 6U * 100096);
  EXPECT_THAT(to_string(plan), HasSubstr("2 classes, 9 slots, 306432 bytes"));
}

TEST(SlotPlanTest, OnlyWhatStreamsAndIsReadHasStagingSlotsOfWholePages) {
  const std::vector<SlotUse> uses = {{1000, 0, true, 4097},
                                     {900, 1, true, 1024},
                                     {1000, 2, true},
                                     {1000, 3, false, 99999},
                                     {100000, 4, true, 100352}};
  const SlotPlan plan = plan_slots(uses, {2, 2, 3});
  ASSERT_EQ(plan.classes.size(), 2U);
  EXPECT_EQ(plan.classes[0].staging, 2);
  EXPECT_EQ(plan.classes[0].staging_slot_bytes, 8192U);
  EXPECT_EQ(plan.classes[1].staging, 1);
  EXPECT_EQ(plan.staging_bytes, 2U * 8192 + 102400);
  EXPECT_THAT(to_string(plan), HasSubstr("; 3 staging slots, 118784 bytes"));
  EXPECT_THAT(to_string(plan_slots(std::vector<SlotUse>{{1000, 0}}, {})),
              Not(HasSubstr("staging")));
}

// Page-locked memory does not grow with the weights, nor with their number.
TEST(SlotPlanTest, PartsOfADirectRingShareStagingSlots) {
  constexpr std::uint64_t kMiB = std::uint64_t{1} << 20;
  const RingDepth direct{.pairs = 2, .staging = 1, .direct = true};
  const auto of = [&](std::uint64_t bytes, int count) {
    std::vector<SlotUse> uses;
    for (int module = 0; module < 4; ++module) {
      for (int k = 0; k < count; ++k) {
        uses.push_back({bytes, module, true, bytes + 4096, 0, std::min(bytes + 4096, 8 * kMiB)});
      }
    }
    return plan_slots(uses, direct);
  };
  const SlotPlan large = of(500 * kMiB, 3);
  EXPECT_EQ(large.part_slot_bytes, 8 * kMiB);
  EXPECT_EQ(large.part_slots, 8);
  EXPECT_EQ(large.staging_bytes, SlotPlan::kPartsBytes);
  EXPECT_EQ(large.most_parts, 2 * 3 * 63);
  EXPECT_EQ(large.bytes, 6 * 500 * kMiB);
  EXPECT_EQ(of(1000 * kMiB, 7).staging_bytes, large.staging_bytes);
  const SlotPlan small = of(10'000, 1);
  EXPECT_EQ(small.part_slots, 2);
  EXPECT_EQ(small.staging_bytes, 2U * 16384);
  EXPECT_THAT(to_string(small), HasSubstr("; 2 staging slots, 32768 bytes"));
  // A part above what all should take: one is read while another crosses.
  const std::vector<SlotUse> chunks = {{99 * kMiB, 0, true, 99 * kMiB, 0, 99 * kMiB}};
  EXPECT_EQ(plan_slots(chunks, direct).staging_bytes, 2 * 99 * kMiB);
}

TEST(SlotPlanTest, SizesThatAreNeverThereTogetherShareSlots) {
  const std::vector<SlotUse> uses = {{1000, 0}, {1020, 1}, {1000, 2}, {1020, 3}};
  EXPECT_EQ(plan_slots(uses, {1, 1}).classes.size(), 1U);
}

// Returns the streamed bytes of each module that has a use.
std::vector<std::uint64_t> crossing(const std::vector<SlotUse>& uses) {
  std::vector<std::uint64_t> bytes;
  for (std::size_t i = 0; i < uses.size(); ++i) {
    if (i == 0 || uses[i].module != uses[i - 1].module) bytes.push_back(0);
    if (uses[i].streamed) bytes.back() += uses[i].bytes;
  }
  return bytes;
}

TEST(SlotPlanTest, WhatCrossesWhileAWeightGoesBackHasSlots) {
  Rng rng(std::random_device{}());
  for (int round = 0; round < 200; ++round) {
    const std::vector<SlotUse> uses = random_uses(rng);
    const int ahead = 1 + static_cast<int>(rng.below(4));
    const SlotPlan plan = plan_slots(uses, ring_depth(ahead, true));
    const std::vector<std::uint64_t> bytes = crossing(uses);
    for (std::size_t first = 0; first < bytes.size(); ++first) {
      std::vector<int> needed(plan.classes.size());
      std::uint64_t crossed = 0;
      for (std::size_t behind = 0; behind < bytes.size(); ++behind) {
        if (behind > static_cast<std::size_t>(ahead) && crossed >= bytes[first]) break;
        const std::size_t module = (first + behind) % bytes.size();
        std::size_t at = 0;  // Index of its first use.
        for (std::size_t m = 0; at < uses.size(); ++at) {
          if (at > 0 && uses[at].module != uses[at - 1].module) ++m;
          if (m == module) break;
        }
        for (std::size_t i = at; i < uses.size() && uses[i].module == uses[at].module; ++i) {
          needed[static_cast<std::size_t>(plan.class_of[i])] += uses[i].streamed ? 1 : 0;
        }
        if (behind > 0) crossed += bytes[module];
      }
      for (std::size_t c = 0; c < needed.size(); ++c) {
        EXPECT_GE(plan.classes[c].arrivals, needed[c]) << "first " << first << ", class " << c;
      }
    }
  }
}

TEST(SlotPlanTest, SmallWeightsThatComeWhileALargeOneGoesBackTakeNoLargeSlots) {
  std::vector<SlotUse> uses;
  for (int block = 0; block < 3; ++block) {
    for (const std::uint64_t units : {4U, 1U, 1U, 4U, 11U, 11U, 11U}) {
      uses.push_back({units << 20, static_cast<int>(uses.size())});
    }
  }
  const SlotPlan plan = plan_slots(uses, ring_depth(2, true));
  // After one of 11 come 4, 1, 1 and 4, and the next of 11; those of 4 share its slots.
  ASSERT_EQ(plan.classes.size(), 2U);
  EXPECT_EQ(plan.classes[0].slot_bytes, 1U << 20);
  EXPECT_EQ(plan.classes[0].arrivals, 2);
  EXPECT_EQ(plan.classes[1].arrivals, 4);
  EXPECT_EQ(plan.bytes, (2U + 2 * 2 + 4 * 11 + 2 * 2 * 11) << 20);
  // For weights that are only read, there are as many as two modules have.
  EXPECT_EQ(plan_slots(uses, ring_depth(2, false)).classes.back().arrivals, 2);
}

TEST(SlotPlanTest, BadInputIsRefused) {
  const std::vector<SlotUse> good = {{8, 0}}, empty = {{0, 0}}, descending = {{8, 3}, {8, 2}};
  EXPECT_THAT(
      [&] {
        plan_slots(good, {0, 2});
      },
      ThrowsMessage<InvalidArgument>(HasSubstr("0 modules of arrivals")));
  EXPECT_THAT([&] { plan_slots(empty, {}); },
              ThrowsMessage<InvalidArgument>(HasSubstr("use 0 has 0 bytes")));
  const std::vector<SlotUse> half_read = {{8, 0, true, 7}};
  EXPECT_THAT([&] { plan_slots(half_read, {}); },
              ThrowsMessage<InvalidArgument>(HasSubstr("is read as 7 bytes, expected at least 8")));
  EXPECT_THAT(
      [&] {
        plan_slots(good, {1, 2, 0});
      },
      ThrowsMessage<InvalidArgument>(HasSubstr("0 of staging")));
  EXPECT_THAT([&] { plan_slots(descending, {}); },
              ThrowsMessage<InvalidArgument>(HasSubstr("module 2, expected at least 3")));
  const std::vector<SlotUse> whole = {{10, 0, true, 10}};
  EXPECT_THAT([&] { plan_slots(whole, {.direct = true}); },
              ThrowsMessage<InvalidArgument>(HasSubstr("parts of 0 bytes")));
  EXPECT_EQ(plan_slots({}, {}).bytes, 0U);
}

}  // namespace
}  // namespace sluiceway::test
