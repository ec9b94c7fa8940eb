// How long work takes CUDA device 0, by events around it, and how large the work is.
#pragma once

#include <cstdint>
#include <functional>

#include "kernels/base/stream_ref.h"

namespace sluiceway::bench {

struct DeviceSizes {
  std::int64_t side;         // Rows and columns of a weight.
  std::int64_t tokens;       // Rows of a layer's input.
  std::int64_t elems;        // Of what has no shape.
  std::int64_t swept_elems;  // f32, more than the second-level cache has.
  unsigned blocks;           // Of a roof's kernel.
  int rounds;                // Of a roof's multiply-adds.
  int calls;                 // Of each kernel that is measured.
};

// Those of a card; with choose_tiny_sizes() before the first call, those that a processor computes
// in a second, where only the code is of interest.
const DeviceSizes& device_sizes();
void choose_tiny_sizes();

using DeviceWork = std::function<void(StreamRef)>;

// Of one call of `work`, after the second-level cache was swept. The sweep is enqueued before, so
// that the device is busy while the call is, and the time is the device's alone. Rethrows.
double device_seconds(const DeviceWork& work);

// Enqueues and waits. Rethrows.
void run_on_device_0(const DeviceWork& work);

}  // namespace sluiceway::bench
