// Finds the uses of a forward that share one weight, and the weights that stay on the device.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "runtime/engine/zo/slot_plan.h"
#include "runtime/engine/zo/weight_source.h"
#include "runtime/engine/zo/zo_weight.h"

namespace sluiceway {

// Returns by use the first use of the same storage, which is host memory or an index in a source.
// InvalidArgument: a use without elements or storage, storages that overlap partly or differ in
// type.
std::vector<int> first_uses(std::span<const ZoWeight> uses);

// Returns by use the bytes that `source` reads; 0 in host memory. InvalidArgument: no source.
std::vector<std::uint64_t> read_sizes(std::span<const ZoWeight> uses, const WeightSource* source);

// Returns by use whether it stays on the device: all with `keep`, and of the others as many bytes
// as fit, at most `most`, where ring and weights together have `device_bytes`.
std::vector<bool> staying(std::span<const ZoWeight> uses, std::span<const int> first_use,
                          RingDepth depth, std::uint64_t most, std::uint64_t device_bytes);

SlotPlan plan_slots(std::span<const ZoWeight> uses, const std::vector<bool>& stays,
                    std::span<const std::uint64_t> read_bytes, RingDepth depth);

}  // namespace sluiceway
