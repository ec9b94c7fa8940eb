// A place as eight bytes.
//
//   place := drive << 56 | offset / 4096
#pragma once

#include <cstdint>

#include "runtime/store/byte_stream.h"
#include "runtime/store/layout.h"

namespace sluiceway {

inline constexpr std::uint32_t kMostDrives = 255;

inline void put(ByteWriter& out, const Place& place) {
  out.put((std::uint64_t{place.drive} << 56) | (place.offset / kBlockBytes));
}

inline Place take_place(ByteReader& fields) {
  const auto word = fields.take<std::uint64_t>();
  const std::uint64_t blocks = word & ((std::uint64_t{1} << 56) - 1);
  // 2^51 blocks are 2^63 bytes: no file is larger, and 2^52 blocks would overflow 64 bits.
  if (blocks >> 51 != 0) throw Corrupt(fields.what() + ": a place lies beyond 2^63 bytes");
  return {static_cast<std::uint32_t>(word >> 56), blocks * kBlockBytes};
}

}  // namespace sluiceway
