// Times work on CUDA device 0 by events around it, and sets the sizes of the work.
#pragma once

#include <cstdint>
#include <functional>

#include "kernels/base/stream_ref.h"

namespace sluiceway::bench {

struct DeviceSizes {
  std::int64_t side;         // Rows and columns of a weight.
  std::int64_t tokens;       // Rows of a layer's input.
  std::int64_t elems;        // Elements of arrays without a shape.
  std::int64_t swept_elems;  // f32 elements, more than the second-level cache holds.
  unsigned blocks;           // Blocks of a roof's kernel.
  int rounds;                // Rounds of a roof's multiply-adds.
  int calls;                 // Calls of each measured kernel.
};

// Sizes for a card. After choose_tiny_sizes() they are so small that a processor computes them in a
// second, to test the code alone; call that function before the first call of this one.
const DeviceSizes& device_sizes();
void choose_tiny_sizes();

using DeviceWork = std::function<void(StreamRef)>;

// Time of one call of `work`, after a sweep of the second-level cache. The sweep is enqueued first,
// so the device is busy during the call, and the time is the device's alone. Rethrows.
double device_seconds(const DeviceWork& work);

// Enqueues `work` and waits for it. Rethrows.
void run_on_device_0(const DeviceWork& work);

}  // namespace sluiceway::bench
