// An array on CUDA device 0, copied from and to a vector.
#pragma once

#include <cstddef>
#include <span>
#include <vector>

#include "runtime/device/device_memory.h"

namespace sluiceway::test {

template <typename T>
class DeviceArray {
 public:
  explicit DeviceArray(std::size_t elems)  // Leaves the elements unwritten.
      : data_(static_cast<T*>(allocate_device_bytes(device(), elems * sizeof(T)))), elems_(elems) {}
  explicit DeviceArray(const std::vector<T>& values) : DeviceArray(values.size()) {
    copy_device_bytes(device(), data_, values.data(), elems_ * sizeof(T));
  }
  DeviceArray(const DeviceArray&) = delete;
  DeviceArray& operator=(const DeviceArray&) = delete;
  ~DeviceArray() { release(); }

  static DeviceId device() { return DeviceId::cuda(0); }
  T* data() const noexcept { return data_; }
  std::size_t size_bytes() const noexcept { return elems_ * sizeof(T); }

  std::vector<T> values() const {
    std::vector<T> values(elems_);
    copy_device_bytes(device(), values.data(), data_, elems_ * sizeof(T));
    return values;
  }

  void release() {
    free_device_bytes(device(), data_, elems_ * sizeof(T));
    data_ = nullptr;
  }

 private:
  T* data_;
  std::size_t elems_;
};

}  // namespace sluiceway::test
