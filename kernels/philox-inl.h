// SIMD form of philox.h, for kernels that draw noise while they write.
//
//   const NoiseStream noise(key);
//   std::uint16_t bits[kTile];
//   noise.fill(first, bits, count);      // bits[i] = noise_16(key, first + i)
//
// Cost: about one cycle per 16 bits with AVX2; `bits` should stay in the first-level cache.
#if defined(SLUICEWAY_KERNELS_PHILOX_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef SLUICEWAY_KERNELS_PHILOX_INL_H_
#undef SLUICEWAY_KERNELS_PHILOX_INL_H_
#else
#define SLUICEWAY_KERNELS_PHILOX_INL_H_
#endif

#include <hwy/highway.h>

#include <algorithm>
#include <bit>
#include <cstring>

#include "kernels/philox.h"

HWY_BEFORE_NAMESPACE();
namespace sluiceway {
namespace HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

static_assert(std::endian::native == std::endian::little, "16-bit halves are stored low first");

class NoiseStream {
 public:
  static constexpr std::size_t kGroupWords = 64;  // The unit that is computed at once.

  explicit NoiseStream(const NoiseKey& key) : tensor_(key.tensor) {
    PhiloxKey k = philox_key(key);
    for (auto& round_key : round_keys_) {
      round_key = {k[0], k[1]};
      k = {k[0] + kPhiloxW0, k[1] + kPhiloxW1};
    }
  }

  // T is std::uint32_t or std::uint16_t. `first` may be any number; a multiple of a group is
  // fastest.
  template <typename T>
  void fill(std::uint64_t first, T* out, std::size_t count) const {
    constexpr std::size_t kGroup = kGroupWords * sizeof(std::uint32_t) / sizeof(T);
    while (count > 0) {
      const std::size_t skip = static_cast<std::size_t>(first % kGroup);
      const std::size_t take = std::min(kGroup - skip, count);
      if (take == kGroup) {
        group(first / kGroup, reinterpret_cast<unsigned char*>(out));
      } else {
        alignas(64) unsigned char whole[kGroup * sizeof(T)];
        group(first / kGroup, whole);
        std::memcpy(out, whole + skip * sizeof(T), take * sizeof(T));
      }
      first += take;
      out += take;
      count -= take;
    }
  }

 private:
  // Writes stream words [64 g, 64 g + 64), which are the 16 blocks from 16 g on.
  void group(std::uint64_t g, unsigned char* out) const {
#if HWY_TARGET == HWY_SCALAR
    const std::uint32_t t0 = static_cast<std::uint32_t>(tensor_);
    const std::uint32_t t1 = static_cast<std::uint32_t>(tensor_ >> 32);
    for (std::size_t lane = 0; lane < 16; ++lane) {
      const std::uint64_t block = g * 16 + lane;
      const PhiloxCounter words = philox4x32_10(
          {static_cast<std::uint32_t>(block), static_cast<std::uint32_t>(block >> 32), t0, t1},
          {static_cast<std::uint32_t>(round_keys_[0][0]),
           static_cast<std::uint32_t>(round_keys_[0][1])});
      for (std::size_t w = 0; w < 4; ++w) std::memcpy(out + 64 * w + 4 * lane, &words[w], 4);
    }
#else
    const hn::CappedTag<std::uint64_t, 8> d;
    // One vector of even and one of odd blocks, a block in each 64-bit lane.
    const auto iota = hn::Iota(d, 0);
    const auto even = hn::Add(iota, iota);
    for (std::size_t lane = 0; lane < 16; lane += 2 * hn::Lanes(d)) {
      const auto block = hn::Add(hn::Set(d, g * 16 + lane), even);
      blocks(d, block, out + 4 * lane);
    }
#endif
  }

#if HWY_TARGET != HWY_SCALAR
  // Only the low half of a 64-bit lane is meaningful: MulEven reads nothing else, and the last step
  // drops the high half.
  template <class D, class V = hn::Vec<D>>
  HWY_INLINE void blocks(D d, V block, unsigned char* out) const {
    const hn::Repartition<std::uint32_t, D> d32;
    const V m0 = hn::Set(d, kPhiloxM0), m1 = hn::Set(d, kPhiloxM1);
    const V odd_block = hn::Add(block, hn::Set(d, 1));
    V a0 = block, a1 = hn::ShiftRight<32>(block), a2 = hn::Set(d, tensor_),
      a3 = hn::Set(d, tensor_ >> 32);
    V b0 = odd_block, b1 = hn::ShiftRight<32>(odd_block), b2 = a2, b3 = a3;
    static_assert(kPhiloxRounds == 10);  // A loop would move eight vectors in each round.
    HWY_UNROLL(10)
    for (const auto& key : round_keys_) {
      const V k0 = hn::Set(d, key[0]), k1 = hn::Set(d, key[1]);
      const V pa0 = multiply(d, a0, m0), pa1 = multiply(d, a2, m1);
      const V pb0 = multiply(d, b0, m0), pb1 = multiply(d, b2, m1);
      a0 = hn::Xor3(hn::ShiftRight<32>(pa1), a1, k0);
      b0 = hn::Xor3(hn::ShiftRight<32>(pb1), b1, k0);
      a2 = hn::Xor3(hn::ShiftRight<32>(pa0), a3, k1);
      b2 = hn::Xor3(hn::ShiftRight<32>(pb0), b3, k1);
      a1 = pa1, a3 = pa0;
      b1 = pb1, b3 = pb0;
    }
    store(d32, interleave(d, a0, b0), out);
    store(d32, interleave(d, a1, b1), out + 64);
    store(d32, interleave(d, a2, b2), out + 128);
    store(d32, interleave(d, a3, b3), out + 192);
  }

  template <class D, class V = hn::Vec<D>>
  static HWY_INLINE V multiply(D /*d*/, V a, V b) {
    const hn::Repartition<std::uint32_t, D> d32;
    return hn::MulEven(hn::BitCast(d32, a), hn::BitCast(d32, b));
  }

  template <class D, class V = hn::Vec<D>>
  static HWY_INLINE V interleave(D d, V even, V odd) {
    const hn::Repartition<std::uint32_t, D> d32;
    return hn::BitCast(
        d, hn::OddEven(hn::BitCast(d32, hn::ShiftLeft<32>(odd)), hn::BitCast(d32, even)));
  }

  template <class D32, class V>
  static HWY_INLINE void store(D32 d32, V v, unsigned char* out) {
    hn::StoreU(hn::BitCast(d32, v), d32, reinterpret_cast<std::uint32_t*>(out));
  }
#endif

  std::uint64_t tensor_;
  // Stored as wide as the lanes that receive them.
  std::array<std::array<std::uint64_t, 2>, kPhiloxRounds> round_keys_;
};

}  // namespace HWY_NAMESPACE
}  // namespace sluiceway
HWY_AFTER_NAMESPACE();

#endif  // SLUICEWAY_KERNELS_PHILOX_INL_H_
