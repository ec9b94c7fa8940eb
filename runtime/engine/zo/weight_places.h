// Finds the uses of a forward that share one weight, and the weights that stay on the device.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "runtime/engine/zo/slot_plan.h"
#include "runtime/engine/zo/weight_source.h"
#include "runtime/engine/zo/zo_weight.h"

namespace sluiceway {

// By use: the first use of the same storage, which is host memory or an index in a source.
// InvalidArgument: a use without elements or storage, storages that overlap in part or differ in
// type.
std::vector<int> first_uses(std::span<const ZoWeight> uses);

// By use: what `source` reads for it; 0 where it is in host memory. InvalidArgument: there is none.
std::vector<std::uint64_t> read_sizes(std::span<const ZoWeight> uses, const WeightSource* source);

// By use. What is kept stays; of the others as many bytes as there is room for, at most `most`,
// where the device has `device_bytes` for ring and weights together.
std::vector<bool> staying(std::span<const ZoWeight> uses, std::span<const int> first_use,
                          RingDepth depth, std::uint64_t most, std::uint64_t device_bytes);

SlotPlan plan_slots(std::span<const ZoWeight> uses, const std::vector<bool>& stays,
                    std::span<const std::uint64_t> read_bytes, RingDepth depth);

}  // namespace sluiceway
