// Views bytes as elements of a type; trailing bytes that fill no element are ignored.
#pragma once

#include <cstddef>
#include <span>

namespace sluiceway {

template <typename T>
std::span<T> elements(std::span<std::byte> bytes) {
  return {reinterpret_cast<T*>(bytes.data()), bytes.size() / sizeof(T)};
}

template <typename T>
std::span<const T> elements(std::span<const std::byte> bytes) {
  return {reinterpret_cast<const T*>(bytes.data()), bytes.size() / sizeof(T)};
}

}  // namespace sluiceway
