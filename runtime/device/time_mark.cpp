#include "runtime/device/time_mark.h"

#include "runtime/device/cuda_backend.h"

namespace sluiceway {

std::unique_ptr<TimeMark> make_time_mark(DeviceId device) { return cuda::make_time_mark(device); }

}  // namespace sluiceway
