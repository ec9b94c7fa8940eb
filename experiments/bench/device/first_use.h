// Measures the setup at the first use of CUDA device 0, which no step waits for: its time, and the
// device memory that it keeps.
#pragma once

#include <cstddef>
#include <string>
#include <vector>

namespace sluiceway::bench {

struct FirstUse {
  std::string name;
  double seconds, bytes;
  std::size_t kernels;  // Number of loaded kernels.
};

// Call it before anything else uses the device, as each part is set up once in a process.
std::vector<FirstUse> measure_first_use();

}  // namespace sluiceway::bench
