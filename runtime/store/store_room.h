// Reserves the disk-tier bytes of a store before the store takes them.
//
// Lifetime: the budget outlives it.
// Errors:   OutOfMemory, with both byte counts; nothing was taken.
#pragma once

#include <cstdint>
#include <vector>

#include "runtime/memory/budget.h"
#include "runtime/store/chunk_store.h"
#include "runtime/store/layout.h"

namespace sluiceway {

class StoreRoom {
 public:
  // A store in host memory reserves its bytes itself, so nothing is reserved here.
  StoreRoom(Budget& budget, bool on_disk) : budget_(budget), on_disk_(on_disk) {}

  void hold(const Layout& layout);  // Raises the reservation to the needs of `layout`.
  void add_slot(ChunkStore& store, std::uint32_t region);

 private:
  Budget& budget_;
  bool on_disk_;
  std::uint64_t held_ = 0;
  std::vector<Budget::Reservation> reservations_;
};

}  // namespace sluiceway
