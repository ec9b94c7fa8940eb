// What the store of the offload engine holds: states of tensors, commits, a run's own bytes.
#pragma once

#include "python/bindings/engine_class.h"
#include "runtime/engine/offload/offload_engine.h"

namespace sluiceway {

void bind_offload_state(EngineClass<OffloadEngine>& engine);

}  // namespace sluiceway
