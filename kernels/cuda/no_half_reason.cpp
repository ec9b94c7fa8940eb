#include "kernels/base/check.h"
#include "kernels/no_half/no_half.h"

namespace sluiceway::cuda {

void throw_no_half(const char* function) {
  throw Unavailable(concat(function, ": has no CUDA half in this version; use the host device"));
}

}  // namespace sluiceway::cuda
