// Reserves the disk-tier bytes of a store before the store takes them, and keeps calls that change
// the store apart from other threads that read it.
//
// Thread safety: changing() from any thread.
// Lifetime:      the budget outlives it.
// Errors:        OutOfMemory, with both byte counts; nothing was taken.
#pragma once

#include <cstdint>
#include <mutex>
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
  // Call it while holding changing().
  void add_slot(ChunkStore& store, std::uint32_t region);

  // Held by whoever changes the store, and by a thread that begins a read beside that.
  std::unique_lock<std::mutex> changing() { return std::unique_lock(mutex_); }

 private:
  Budget& budget_;
  bool on_disk_;
  std::mutex mutex_;
  std::uint64_t held_ = 0;
  std::vector<Budget::Reservation> reservations_;
};

}  // namespace sluiceway
