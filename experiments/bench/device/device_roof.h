// Measures the limits of CUDA device 0 in the calling process: the counterpart of roof.h.
//
// Bytes count as a kernel's Cost line counts them. Arrays are larger than the second-level cache.
#pragma once

#include "experiments/bench/roof.h"

namespace sluiceway::bench {

// Runs one more pass for one roof; units of 1e9 a second. `adam` is not among the roofs.
double device_roof_now(double Roof::*which);

// The best of several passes for each roof, measured at the first call.
const Roof& device_roof();

}  // namespace sluiceway::bench
