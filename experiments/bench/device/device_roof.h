// What CUDA device 0 can do at most, measured in the process that asks: roof.h's counterpart.
//
// Bytes count as a kernel's Cost line counts them. Arrays are larger than the second-level cache.
#pragma once

#include "experiments/bench/roof.h"

namespace sluiceway::bench {

// One more pass for one roof, in units of 1e9 a second; `adam` is not among them.
double device_roof_now(double Roof::*which);

// The best of several passes each, measured at the first call.
const Roof& device_roof();

}  // namespace sluiceway::bench
