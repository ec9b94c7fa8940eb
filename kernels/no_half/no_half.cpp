#include "kernels/no_half/no_half.h"

#include "kernels/base/check.h"

namespace sluiceway::cuda {

void throw_no_half(const char* function) {
  throw Unavailable(concat(function,
                           ": this build has no CUDA, expected a build with SLUICEWAY_CUDA=ON; "
                           "use the host device"));
}

}  // namespace sluiceway::cuda
