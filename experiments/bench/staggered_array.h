// An array for benchmarks whose start differs from its neighbours' modulo a power of two.
//
// Large arrays of a power-of-two size come from malloc one page apart. On some processors (Zen 3:
// the way predictor hashes address bits 12 to 27) such neighbours evict each other from the first
// level cache, and any loop over four of them runs at two thirds of its speed, the roof's own too.
// The benchmarks measure the kernel, so kernel and roof both use arrays without that accident.
#pragma once

#include <hwy/aligned_allocator.h>

#include <algorithm>
#include <cstddef>
#include <span>

namespace sluiceway::bench {

template <typename T>
class StaggeredArray {
 public:
  StaggeredArray(std::size_t elems, T value)
      : array_(hwy::AllocateAligned<T>(elems)), elems_(elems) {
    std::fill_n(array_.get(), elems, value);
  }

  T* data() { return array_.get(); }
  std::size_t size() const { return elems_; }
  T& operator[](std::size_t i) { return array_[i]; }
  std::span<T> span() { return {array_.get(), elems_}; }
  std::span<const T> view() const { return {array_.get(), elems_}; }

 private:
  hwy::AlignedFreeUniquePtr<T[]> array_;
  std::size_t elems_;
};

}  // namespace sluiceway::bench
