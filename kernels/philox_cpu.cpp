#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/philox_cpu.cpp"
#include <hwy/foreach_target.h>
// foreach_target.h comes first: it includes this file once for each instruction set.
#include <hwy/highway.h>

#include "kernels/philox-inl.h"
#include "kernels/philox.h"

HWY_BEFORE_NAMESPACE();
namespace sluiceway {
namespace HWY_NAMESPACE {

void fill_32(const NoiseKey& key, std::uint64_t first, std::uint32_t* out, std::size_t count) {
  NoiseStream(key).fill(first, out, count);
}

void fill_16(const NoiseKey& key, std::uint64_t first, std::uint16_t* out, std::size_t count) {
  NoiseStream(key).fill(first, out, count);
}

}  // namespace HWY_NAMESPACE
}  // namespace sluiceway
HWY_AFTER_NAMESPACE();

#if HWY_ONCE

#define XXH_INLINE_ALL
#include <xxhash.h>

namespace sluiceway {

HWY_EXPORT(fill_32);
HWY_EXPORT(fill_16);

std::uint64_t stable_hash(std::string_view name) noexcept {
  return XXH3_64bits(name.data(), name.size());
}

namespace cpu {

void fill_bits(const NoiseKey& key, std::uint64_t first, std::span<std::uint32_t> out) {
  HWY_DYNAMIC_DISPATCH(fill_32)(key, first, out.data(), out.size());
}

void fill_bits(const NoiseKey& key, std::uint64_t first, std::span<std::uint16_t> out) {
  HWY_DYNAMIC_DISPATCH(fill_16)(key, first, out.data(), out.size());
}

}  // namespace cpu
}  // namespace sluiceway

#endif  // HWY_ONCE
