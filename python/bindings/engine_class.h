// How Python holds an engine; shared by the files that bind it.
#pragma once

#include <unistd.h>

#include <memory>

#include "python/bindings/bindings.h"
#include "runtime/engine/subspace/subspace_engine.h"

namespace sluiceway {

// A forked child has the engine's memory but not its threads: it must not try to join them. An
// engine with a lane that still runs is kept for good, since that lane uses it.
struct EngineDeleter {
  pid_t opened_in = getpid();
  void operator()(SubspaceEngine* engine) const {
    if (getpid() != opened_in) return;
    const py::gil_scoped_release unlocked;
    try {
      engine->finish();
    } catch (...) {
      return;
    }
    delete engine;
  }
};

using EngineClass = py::class_<SubspaceEngine, std::unique_ptr<SubspaceEngine, EngineDeleter>>;

void bind_weight_state(EngineClass& engine);

}  // namespace sluiceway
