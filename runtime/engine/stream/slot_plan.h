// Chooses the number and the sizes of a ring's slots.
//
//   staging slot   host     a weight read from elsewhere than host memory arrival
//   slot   device   one copy of a weight, as it came over the link
//   pair           device   two copies of a weight, which a turn reads
//
// In a direct ring a weight arrives in the slot that its turn reads: there are no other arrival
// slots, and a pair is this one slot. It is read in parts, all of which share one ring of staging
// slots, so these do not grow with the weights.
//
// A slot serves weights of its size class: those larger than the previous class, up to its own
// size. A class has as many slots as it has weights in any `staging` (`arrivals`, `pairs`)
// consecutive modules, where the first module follows the last. Among all divisions into ranges of
// sizes, the plan takes the one that needs the fewest bytes on the device.
//
// Where weights go back, an arrival slot becomes free one crossing later than where they are only
// read. So that the link need not wait, arrivals then cover one module plus `arrivals` modules
// after it, or more if more weights cross while the first goes back: small ones behind a large one.
//
// Thread safety: pure functions.
// Errors:        InvalidArgument: depths below 1, a use without bytes, modules in descending order.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

namespace sluiceway {

struct RingDepth {  // In modules.
  int arrivals = 2;
  int pairs = 2;
  int staging = 4;
  bool goes_back = false;  // Arrived weights go back.
  bool direct = false;     // Turns read what arrived; `arrivals` has no meaning.
};

// Returns the depth for a forward that runs `modules` modules ahead.
constexpr RingDepth ring_depth(int modules, bool goes_back) noexcept {
  return {.arrivals = modules, .pairs = modules, .goes_back = goes_back};
}

struct ReadSize {
  std::uint64_t bytes = 0;       // Read to load a weight; 0: it is in host memory.
  std::uint64_t part_bytes = 0;  // Of one request in a direct ring.
};

struct SlotUse {  // One use of a weight in a forward, in the order of the forward.
  std::uint64_t bytes = 0;
  int module = 0;
  bool streamed = true;          // Resident: no arrival slot, no staging slot.
  std::uint64_t read_bytes = 0;  // Bytes read to load it; 0: it is in host memory.
  std::uint64_t copy_bytes = 0;  // Bytes of each of its two copies; 0: as its own.
  std::uint64_t part_bytes = 0;  // In a direct ring: of one request.

  int parts() const noexcept {
    return part_bytes == 0 ? 0 : static_cast<int>((read_bytes + part_bytes - 1) / part_bytes);
  }
};

struct SlotClass {
  std::uint64_t slot_bytes = 0;       // For an arrival; a multiple of kSlotAlignment.
  std::uint64_t copy_slot_bytes = 0;  // For each copy of a pair; the same multiple.
  int arrivals = 0;
  int pairs = 0;
  int copies = 2;  // Of a pair.
  int staging = 0;
  std::uint64_t staging_slot_bytes = 0;  // A multiple of kStagingAlignment.
  std::uint64_t bytes() const noexcept {
    return slot_bytes * static_cast<std::uint64_t>(arrivals) +
           copy_slot_bytes * static_cast<std::uint64_t>(copies * pairs);
  }
  std::uint64_t staging_bytes() const noexcept {
    return staging_slot_bytes * static_cast<std::uint64_t>(staging);
  }
};

struct SlotPlan {
  static constexpr std::uint64_t kSlotAlignment = 256;
  static constexpr std::uint64_t kStagingAlignment = 4096;  // Direct I/O reads into it.
  static constexpr std::uint64_t kPartsBytes = std::uint64_t{64} << 20;  // About those of parts.

  std::vector<SlotClass> classes;   // By ascending size.
  std::vector<int> class_of;        // By use.
  std::uint64_t staging_bytes = 0;  // All staging slots.
  // In a direct ring: staging slots for parts, and the most parts that cross at once.
  int part_slots = 0, most_parts = 0;
  std::uint64_t part_slot_bytes = 0;
  std::uint64_t bytes = 0;          // All other slots,
  std::uint64_t uniform_bytes = 0;  // and the same with slots of the largest size.
  double waste = 0;                 // Part of a slot that its weight leaves empty, mean over uses;
  double uniform_waste = 0;         // and the same with slots of the largest size.
};

SlotPlan plan_slots(std::span<const SlotUse> uses, RingDepth depth);

// "ring: 3 classes, 12 slots, 1048576 bytes (1.00 MiB), 4 % waste; slots of the largest size: ...",
// and where weights are read, "; 5 staging slots, 524288 bytes (512 KiB)".
std::string to_string(const SlotPlan& plan);

}  // namespace sluiceway
