// What the CUDA half of a kernel does in a build without CUDA.
#pragma once

#include <string>

#include "kernels/base/error.h"

namespace sluiceway::cuda {

[[noreturn]] inline void throw_unavailable(const char* function) {
  throw Unavailable(std::string(function) +
                    ": this build has no CUDA, expected a build with SLUICEWAY_CUDA=ON; use the "
                    "host device");
}

}  // namespace sluiceway::cuda
