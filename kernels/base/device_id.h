// Names a device: the host, or a CUDA device by its ordinal.
//
// There is no default: code that does not say where memory lives or work runs does not compile.
//
// Errors: InvalidArgument for a negative ordinal, which would mean the host by accident.
#pragma once

#include "kernels/base/check.h"

namespace sluiceway {

class DeviceId {
 public:
  static constexpr DeviceId host() noexcept { return DeviceId(kHost); }
  static constexpr DeviceId cuda(int ordinal) {
    SLUICEWAY_CHECK(ordinal >= 0, "device: CUDA device ", ordinal, ", expected 0 or more");
    return DeviceId(ordinal);
  }

  constexpr bool is_host() const noexcept { return ordinal_ == kHost; }
  constexpr int ordinal() const noexcept { return ordinal_; }  // Number of the CUDA device.
  friend constexpr bool operator==(DeviceId, DeviceId) = default;

 private:
  static constexpr int kHost = -1;
  explicit constexpr DeviceId(int ordinal) noexcept : ordinal_(ordinal) {}
  int ordinal_;
};

inline std::string to_string(DeviceId device) {
  return device.is_host() ? "the host device" : concat("CUDA device ", device.ordinal());
}

}  // namespace sluiceway
