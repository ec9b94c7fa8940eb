// State that a chunk store shares with the handlers of its requests. The mutex guards all of it;
// handlers hold it for a few assignments, never while they submit.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <mutex>
#include <utility>

#include "runtime/store/chunk_map.h"
#include "runtime/store/chunk_store.h"

namespace sluiceway {

struct ChunkStore::Requests {
  explicit Requests(ChunkMap chunk_map) : map(std::move(chunk_map)) {}

  void begin() {
    const std::lock_guard lock(mutex);
    ++in_flight;
  }

  // Must be the last action of a request: the store may be destroyed afterwards.
  void end() {
    const std::lock_guard lock(mutex);
    if (--in_flight == 0) idle.notify_all();
  }

  std::mutex mutex;
  std::condition_variable idle;
  ChunkMap map;
  std::uint64_t in_flight = 0;
  std::uint64_t relocated = 0;
};

}  // namespace sluiceway
