// What is made when CUDA device 0 is first used, so that no step waits for it: how long it takes
// and how much of the device it keeps.
#pragma once

#include <cstddef>
#include <string>
#include <vector>

namespace sluiceway::bench {

struct FirstUse {
  std::string name;
  double seconds, bytes;
  std::size_t kernels;  // That were loaded.
};

// Call it before anything else uses the device: each part is made once in a process.
std::vector<FirstUse> measure_first_use();

}  // namespace sluiceway::bench
