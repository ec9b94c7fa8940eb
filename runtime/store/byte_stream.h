// Writes whole numbers as little-endian bytes, one after another, and reads them back.
//
// Errors: Corrupt, naming the field, when a read goes past the end.
#pragma once

#include <algorithm>
#include <concepts>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "kernels/base/check.h"

namespace sluiceway {

class ByteWriter {
 public:
  template <std::unsigned_integral T>
  void put(T value) {
    for (std::size_t i = 0; i < sizeof(T); ++i) {
      bytes_.push_back(static_cast<std::byte>(value >> (8 * i)));
    }
  }
  void put(std::span<const std::byte> bytes) {
    bytes_.insert(bytes_.end(), bytes.begin(), bytes.end());
  }

  const std::vector<std::byte>& bytes() const noexcept { return bytes_; }
  std::vector<std::byte> take() noexcept { return std::move(bytes_); }

 private:
  std::vector<std::byte> bytes_;
};

class ByteReader {
 public:
  // Error texts start with `what`.
  ByteReader(std::span<const std::byte> bytes, std::string what)
      : bytes_(bytes), what_(std::move(what)) {}

  template <std::unsigned_integral T>
  T take() {
    T value = 0;
    const auto from = take(sizeof(T));
    for (std::size_t i = 0; i < sizeof(T); ++i) {
      value = static_cast<T>(value | static_cast<T>(std::to_integer<T>(from[i]) << (8 * i)));
    }
    return value;
  }

  std::span<const std::byte> take(std::uint64_t count) {
    if (count > left()) {
      throw Corrupt(concat(what_, ": ends after ", bytes_.size(), " bytes, expected ", count,
                           " more after ", at_));
    }
    const auto taken = bytes_.subspan(at_, static_cast<std::size_t>(count));
    at_ += taken.size();
    return taken;
  }

  std::size_t left() const noexcept { return bytes_.size() - at_; }
  const std::string& what() const noexcept { return what_; }

 private:
  std::span<const std::byte> bytes_;
  std::string what_;
  std::size_t at_ = 0;
};

}  // namespace sluiceway
