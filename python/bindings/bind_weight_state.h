// State of one weight of the subspace engine, for state_dict().
#pragma once

#include "python/bindings/engine_class.h"
#include "runtime/engine/subspace/subspace_engine.h"

namespace sluiceway {

void bind_weight_state(EngineClass<SubspaceEngine>& engine);

}  // namespace sluiceway
