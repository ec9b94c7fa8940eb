// The machine's random choices, all from one seed.
#pragma once

#include <cstdint>
#include <utility>
#include <vector>

namespace sluiceway::simt {

std::uint64_t seed() noexcept;

class Random {  // splitmix64.
 public:
  // `purpose` separates the sequences of one seed.
  explicit Random(std::uint64_t purpose) noexcept
      : state_(seed() * 0x9E3779B97F4A7C15ULL + purpose * 0xD1B54A32D192ED03ULL) {}

  std::uint64_t next() noexcept {
    std::uint64_t z = (state_ += 0x9E3779B97F4A7C15ULL);
    z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9ULL;
    z = (z ^ (z >> 27)) * 0x94D049BB133111EBULL;
    return z ^ (z >> 31);
  }

  std::uint32_t below(std::uint32_t bound) noexcept {
    return static_cast<std::uint32_t>(((next() >> 32) * bound) >> 32);
  }

  template <typename T>
  void shuffle(std::vector<T>& items) noexcept {
    for (std::size_t i = items.size(); i > 1; --i) {
      std::swap(items[i - 1], items[below(static_cast<std::uint32_t>(i))]);
    }
  }

 private:
  std::uint64_t state_;
};

}  // namespace sluiceway::simt
