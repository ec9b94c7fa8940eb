// Steps whose every hop is a wait of known length, run through the true executor and streams.
//
// The calling thread plays the device: it waits for a layer's payload, sleeps for its forward,
// then for each backward, and submits. Lanes sleep too, so the number of processors does not
// matter; what executor and streams add is part of the measured time.
#pragma once

#include <vector>

#include "runtime/schedule/cost_model.h"

namespace sluiceway::experiment {

// Seconds of `steps` steps, each from the end of one backward to the end of the next, after a
// first one that is not counted because its forward finds the lanes empty.
std::vector<double> run_timed_steps(const std::vector<LayerCost>& layers, Order order,
                                    NormBarrier barrier, int steps);

}  // namespace sluiceway::experiment
