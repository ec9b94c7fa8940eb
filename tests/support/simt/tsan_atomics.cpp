// The calls that -fsanitize=thread inserts for the C++ atomics of host code, such as the counters
// of a shared_ptr. Kernels use CUDA's functions instead (simt_atomics.h).
#include <cstdint>
#include <cstdio>
#include <cstdlib>

#include "tests/support/simt/grid.h"

namespace {

using sluiceway::simt::Grid;

void host_only() {
  Grid* const grid = Grid::current();
  if (grid == nullptr) return;
  grid->fail(cudaErrorLaunchFailure, "uses a C++ atomic; use CUDA's functions");
}

}  // namespace

// NOLINTBEGIN(bugprone-reserved-identifier,readability-identifier-naming): the compiler's names.
#define SLUICEWAY_FETCH(bits, word, name)                                              \
  word __tsan_atomic##bits##_fetch_##name(volatile word* address, word operand, int) { \
    host_only();                                                                       \
    return __atomic_fetch_##name(address, operand, __ATOMIC_SEQ_CST);                  \
  }
#define SLUICEWAY_COMPARE(bits, word, strength, weak)                                           \
  int __tsan_atomic##bits##_compare_exchange_##strength(volatile word* address, word* expected, \
                                                        word desired, int, int) {               \
    host_only();                                                                                \
    return __atomic_compare_exchange_n(address, expected, desired, weak, __ATOMIC_SEQ_CST,      \
                                       __ATOMIC_SEQ_CST)                                        \
               ? 1                                                                              \
               : 0;                                                                             \
  }
#define SLUICEWAY_ATOMICS(bits, word)                                            \
  word __tsan_atomic##bits##_load(const volatile word* address, int) {           \
    host_only();                                                                 \
    return __atomic_load_n(address, __ATOMIC_SEQ_CST);                           \
  }                                                                              \
  void __tsan_atomic##bits##_store(volatile word* address, word value, int) {    \
    host_only();                                                                 \
    __atomic_store_n(address, value, __ATOMIC_SEQ_CST);                          \
  }                                                                              \
  word __tsan_atomic##bits##_exchange(volatile word* address, word value, int) { \
    host_only();                                                                 \
    return __atomic_exchange_n(address, value, __ATOMIC_SEQ_CST);                \
  }                                                                              \
  SLUICEWAY_FETCH(bits, word, add)                                               \
  SLUICEWAY_FETCH(bits, word, sub)                                               \
  SLUICEWAY_FETCH(bits, word, and)                                               \
  SLUICEWAY_FETCH(bits, word, or)                                                \
  SLUICEWAY_FETCH(bits, word, xor)                                               \
  SLUICEWAY_COMPARE(bits, word, strong, false)                                   \
  SLUICEWAY_COMPARE(bits, word, weak, true)

extern "C" {

SLUICEWAY_ATOMICS(8, std::uint8_t)
SLUICEWAY_ATOMICS(16, std::uint16_t)
SLUICEWAY_ATOMICS(32, std::uint32_t)
SLUICEWAY_ATOMICS(64, std::uint64_t)
void __tsan_atomic_thread_fence(int) { host_only(); }
void __tsan_atomic_signal_fence(int) { host_only(); }

}  // extern "C"
// NOLINTEND(bugprone-reserved-identifier,readability-identifier-naming)
