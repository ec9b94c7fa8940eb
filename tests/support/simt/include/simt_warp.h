// Barriers, shuffles and votes. Threads meet only if they call from the same line.
#pragma once

#include <simt_device.h>

#include <bit>
#include <cstdint>
#include <cstring>

// The caller's line, since default arguments are evaluated at the call.
#define SLUICEWAY_SITE ::sluiceway::simt::Site site = {__builtin_FILE(), __builtin_LINE()}

inline void __syncthreads(SLUICEWAY_SITE) { sluiceway::simt::barrier(site); }
inline void __syncwarp(unsigned mask = 0xFFFFFFFFU, SLUICEWAY_SITE) {
  sluiceway::simt::warp_barrier(mask, site);
}
inline void __threadfence() { sluiceway::simt::fence(); }
inline void __threadfence_block() {}

inline unsigned __ballot_sync(unsigned mask, int predicate, SLUICEWAY_SITE) {
  return sluiceway::simt::ballot(mask, predicate != 0, site);
}
inline int __any_sync(unsigned mask, int predicate, SLUICEWAY_SITE) {
  return sluiceway::simt::ballot(mask, predicate != 0, site) != 0 ? 1 : 0;
}
inline int __all_sync(unsigned mask, int predicate, SLUICEWAY_SITE) {
  return sluiceway::simt::ballot(mask, predicate != 0, site) == mask ? 1 : 0;
}

namespace sluiceway::simt {

// `source` is a lane within the segment of `width` lanes; outside it a lane keeps its own value.
template <typename T>
T shuffle_value(unsigned mask, T value, int source, int width, Site site) {
  static_assert(sizeof(T) == 4 || sizeof(T) == 8, "CUDA shuffles words of 4 and 8 bytes");
  const int first = lane() / width * width;
  const int from = source < 0 || source >= width ? lane() : first + source;
  std::uint32_t words[sizeof(T) / 4];
  std::memcpy(words, &value, sizeof(T));
  for (std::uint32_t& word : words) word = shuffle(mask, word, from, site);
  std::memcpy(&value, words, sizeof(T));
  return value;
}

}  // namespace sluiceway::simt

template <typename T>
T __shfl_sync(unsigned mask, T value, int source, int width = 32, SLUICEWAY_SITE) {
  return sluiceway::simt::shuffle_value(mask, value, source & (width - 1), width, site);
}
template <typename T>
T __shfl_xor_sync(unsigned mask, T value, int bits, int width = 32, SLUICEWAY_SITE) {
  const int lane = sluiceway::simt::lane();
  // A lane of a later segment is out of reach, a lane of an earlier one is not.
  const int source = ((lane ^ bits) / width <= lane / width) ? (lane ^ bits) : lane;
  return sluiceway::simt::shuffle_value(mask, value, source, 32, site);
}
template <typename T>
T __shfl_down_sync(unsigned mask, T value, unsigned delta, int width = 32, SLUICEWAY_SITE) {
  const int source = sluiceway::simt::lane() % width + static_cast<int>(delta);
  return sluiceway::simt::shuffle_value(mask, value, source, width, site);
}
template <typename T>
T __shfl_up_sync(unsigned mask, T value, unsigned delta, int width = 32, SLUICEWAY_SITE) {
  const int source = sluiceway::simt::lane() % width - static_cast<int>(delta);
  return sluiceway::simt::shuffle_value(mask, value, source, width, site);
}
