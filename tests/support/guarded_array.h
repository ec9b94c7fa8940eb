// An array with a chosen misalignment, poisoned before use, between guards that must survive.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <vector>

namespace sluiceway::test {

// `offset` is the distance of element 0 from a 64-byte boundary, in elements. Until written, every
// byte is 0xCD, so an element that a kernel forgets shows up in any comparison.
template <typename T>
class GuardedArray {
 public:
  explicit GuardedArray(std::size_t elems, std::size_t offset = 0)
      : bytes_(elems * sizeof(T) + offset * sizeof(T) + 3 * kGuardBytes, kPoison),
        elems_(elems),
        first_(boundary() + kGuardBytes + offset * sizeof(T)) {}

  GuardedArray(const std::vector<T>& values, std::size_t offset)
      : GuardedArray(values.size(), offset) {
    if (!values.empty()) std::memcpy(data(), values.data(), values.size() * sizeof(T));
  }

  GuardedArray(const GuardedArray&) = delete;  // A copy would be aligned differently.
  GuardedArray& operator=(const GuardedArray&) = delete;

  T* data() { return reinterpret_cast<T*>(bytes_.data() + first_); }
  const T* data() const { return reinterpret_cast<const T*>(bytes_.data() + first_); }
  std::size_t size() const { return elems_; }
  T& operator[](std::size_t i) { return data()[i]; }
  const T& operator[](std::size_t i) const { return data()[i]; }
  std::span<T> span() { return {data(), elems_}; }
  std::span<const T> span() const { return {data(), elems_}; }
  std::span<const T> span_const() const { return span(); }
  std::vector<T> values() const { return {data(), data() + elems_}; }

  bool guards_intact() const {
    for (std::size_t i = 0; i < bytes_.size(); ++i) {
      const bool inside = i >= first_ && i < first_ + elems_ * sizeof(T);
      if (!inside && bytes_[i] != kPoison) return false;
    }
    return true;
  }

 private:
  static constexpr std::size_t kGuardBytes = 64;
  static constexpr unsigned char kPoison = 0xCD;

  std::size_t boundary() const {
    return (64 - reinterpret_cast<std::uintptr_t>(bytes_.data()) % 64) % 64;
  }

  std::vector<unsigned char> bytes_;
  std::size_t elems_;
  std::size_t first_;
};

}  // namespace sluiceway::test
