// CUDA's atomic functions: relaxed, on words of 4 and 8 bytes.
#pragma once

#include <simt_device.h>

#include <bit>
#include <cstdint>
#include <type_traits>

namespace sluiceway::simt {

template <typename T, typename Function>
T atomic_update(T* address, Function function) {
  using Word = std::conditional_t<sizeof(T) == 4, std::uint32_t, std::uint64_t>;
  static_assert(sizeof(T) == sizeof(Word));
  const Next<Word> next = [](Word old, const void* operand) {
    return std::bit_cast<Word>((*static_cast<const Function*>(operand))(std::bit_cast<T>(old)));
  };
  return std::bit_cast<T>(update(reinterpret_cast<Word*>(address), next, &function));
}

}  // namespace sluiceway::simt

#define SLUICEWAY_ATOMIC(name, type, result)                                                      \
  inline type name(type* address, type value) {                                                   \
    return sluiceway::simt::atomic_update(address, [value](type old) -> type { return result; }); \
  }
#define SLUICEWAY_INTEGER_ATOMICS(type)                                            \
  SLUICEWAY_ATOMIC(atomicAdd, type, old + value)                                   \
  SLUICEWAY_ATOMIC(atomicMax, type, old < value ? value : old)                     \
  SLUICEWAY_ATOMIC(atomicMin, type, value < old ? value : old)                     \
  SLUICEWAY_ATOMIC(atomicOr, type, old | value)                                    \
  SLUICEWAY_ATOMIC(atomicAnd, type, old& value)                                    \
  SLUICEWAY_ATOMIC(atomicXor, type, old ^ value)                                   \
  SLUICEWAY_ATOMIC(atomicExch, type, value)                                        \
  inline type atomicCAS(type* address, type expected, type value) {                \
    return sluiceway::simt::atomic_update(                                         \
        address, [=](type old) -> type { return old == expected ? value : old; }); \
  }

SLUICEWAY_INTEGER_ATOMICS(int)
SLUICEWAY_INTEGER_ATOMICS(unsigned int)
SLUICEWAY_INTEGER_ATOMICS(unsigned long long)
SLUICEWAY_ATOMIC(atomicAdd, float, old + value)
SLUICEWAY_ATOMIC(atomicAdd, double, old + value)
SLUICEWAY_ATOMIC(atomicExch, float, value)

#undef SLUICEWAY_INTEGER_ATOMICS
#undef SLUICEWAY_ATOMIC
