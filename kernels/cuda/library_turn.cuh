// A vendor library's handle for a device, used by one thread at a time.
#pragma once

#include <map>
#include <mutex>

#include "kernels/base/device_id.h"
#include "kernels/cuda/launch.cuh"

namespace sluiceway::cuda {

// While a LibraryTurn exists, the calling thread has the handle, and its device is current. The
// first turn on a device makes the handle with `create`, which throws if the library fails. A
// handle is never destroyed, since the driver may be gone when a program's static objects are
// destroyed.
template <typename Handle>
class LibraryTurn {
 public:
  LibraryTurn(const char* call, DeviceId device, void (*create)(Handle*))
      : current_(call, device.ordinal()), lock_(mutex()) {
    static auto* const handles = new std::map<int, Handle>;
    const auto found = handles->find(device.ordinal());
    if (found != handles->end()) {
      handle_ = found->second;
    } else {
      create(&handle_);
      handles->emplace(device.ordinal(), handle_);
    }
  }
  Handle handle() const noexcept { return handle_; }

 private:
  static std::mutex& mutex() {
    static std::mutex one;
    return one;
  }

  LaunchDevice current_;
  std::lock_guard<std::mutex> lock_;
  Handle handle_{};
};

}  // namespace sluiceway::cuda
