// Steps whose every hop is a wait of known length, run through the true executor and streams.
//
// The calling thread plays the device: it waits for a layer's payload, sleeps for its forward,
// then for each backward, and submits. Lanes sleep too, so the number of processors does not
// matter; what executor and streams add is part of the measured time.
//
// Or the device is a thread of its own, and the calling thread is the one that launches: it takes
// `launch_s` for each forward and backward, which the device then does. So the device can be behind
// the launching thread, as a card is. Once a step the launching thread waits for the device, as
// step() does for the norms.
#pragma once

#include <vector>

#include "runtime/schedule/cost_model.h"

namespace sluiceway::experiment {

// Who waits for an update that is late, where the device is a thread of its own.
enum class Waiter {
  kThread,  // The launching thread, in Executor::acquire(): it launches nothing meanwhile.
  kDevice,  // The device, for something that the host does: no real device may do that.
};

struct Launching {
  double launch_s = 0;
  Waiter waiter = Waiter::kThread;
};

std::vector<double> run_launched_steps(const std::vector<LayerCost>& layers, Launching launching,
                                       int steps);

// Seconds of `steps` steps, each from the end of one backward to the end of the next, after a
// first one that is not counted because its forward finds the lanes empty.
std::vector<double> run_timed_steps(const std::vector<LayerCost>& layers, Order order,
                                    NormBarrier barrier, int steps);

}  // namespace sluiceway::experiment
