// An arena as Python holds it. An engine that reads from it holds it, too.
#pragma once

#include <unistd.h>

#include <memory>

#include "runtime/engine/zo/zo_arena.h"
#include "runtime/memory/budget.h"

namespace sluiceway {

struct HeldArena {
  explicit HeldArena(const Budget::Limits& limits) : budget(limits) {}

  Budget budget;
  std::unique_ptr<ZoArena> arena;
};
using HeldArenaPtr = std::shared_ptr<HeldArena>;

// A forked child has none of the threads that the destructor would wait for.
inline HeldArenaPtr hold_arena(const Budget::Limits& limits) {
  return {new HeldArena(limits), [opened_in = getpid()](HeldArena* held) {
            if (getpid() == opened_in) delete held;
          }};
}

}  // namespace sluiceway
