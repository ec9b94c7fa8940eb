#include "kernels/cuda/load_kernels.h"

#include "kernels/no_half/no_half.h"

namespace sluiceway::cuda {

std::size_t load_kernels(DeviceId device) {
  if (device.is_host()) return 0;
  throw_no_half("load_kernels");
}

}  // namespace sluiceway::cuda
