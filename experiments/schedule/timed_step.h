// Runs steps through the true executor and streams; every hop is a wait of known length.
//
// The calling thread plays the device: it waits for a layer's payload, sleeps for its forward,
// then for each backward, and submits. Lanes sleep too, so the number of processors does not
// matter; what executor and streams add is part of the measured time.
//
// Alternatively the device is a separate thread, and the calling thread launches: it takes
// `launch_s` for each forward and backward, which the device then does. So the device can lag
// behind the launching thread, as a card does. Once a step the launching thread waits for the
// device, as step() does for the norms.
#pragma once

#include <vector>

#include "runtime/schedule/cost_model.h"

namespace sluiceway::experiment {

// The thread that waits for a late update, if the device is a separate thread.
enum class Waiter {
  kThread,  // The launching thread, in Executor::acquire(): it launches nothing meanwhile.
  kDevice,  // The device, which waits for work of the host: no real device may do that.
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
