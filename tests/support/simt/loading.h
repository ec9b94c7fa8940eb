// The code that each device has loaded: kernels, and a library's code for products of a shape.
//
// A launch loads missing code, and then keeps the driver's lock until all streams are idle
// (driver.h).
//
// Thread safety: every call from any thread.
#pragma once

#include <cuda_runtime_api.h>

#include <string>

#include "tests/support/simt/driver.h"

namespace sluiceway::simt {

// The driver's turn of one launch, which loads the launch's code if it is missing.
class LaunchTurn {
 public:
  LaunchTurn(int device, const void* kernel);   // Reports a finding if the kernel is in no list.
  LaunchTurn(int device, std::string product);  // "gemm of 3x4 and 4x5".

 private:
  DriverTurn turn_;
};

}  // namespace sluiceway::simt
