// The calls that -fsanitize=thread inserts before every load and store end here.
//
// Kernel sources are compiled with it and linked without its library. Host accesses in those
// sources do not matter here: these calls then return at once.
//
// The compiler does not report memcpy and similar calls, so those sources call simt_memcpy instead
// (include/simt_memory.h).
#include <cstddef>
#include <cstdint>
#include <cstring>

#include "tests/support/simt/grid.h"

namespace {

using sluiceway::simt::Grid;
using sluiceway::simt::Touch;

void touch(const void* address, std::size_t bytes, Touch kind, bool aligned, const void* from) {
  Grid* const grid = Grid::current();
  if (grid != nullptr) grid->access(address, bytes, kind, aligned, from);
}

}  // namespace

// NOLINTBEGIN(bugprone-reserved-identifier,readability-identifier-naming): the compiler's names.
extern "C" {

void __tsan_init() {}
void __tsan_func_entry(void*) {}
void __tsan_func_exit() {}

#define SLUICEWAY_ACCESS(bytes)                                               \
  void __tsan_read##bytes(void* address) {                                    \
    touch(address, bytes, Touch::kRead, true, __builtin_return_address(0));   \
  }                                                                           \
  void __tsan_write##bytes(void* address) {                                   \
    touch(address, bytes, Touch::kWrite, true, __builtin_return_address(0));  \
  }                                                                           \
  void __tsan_unaligned_read##bytes(void* address) {                          \
    touch(address, bytes, Touch::kRead, false, __builtin_return_address(0));  \
  }                                                                           \
  void __tsan_unaligned_write##bytes(void* address) {                         \
    touch(address, bytes, Touch::kWrite, false, __builtin_return_address(0)); \
  }
SLUICEWAY_ACCESS(1)
SLUICEWAY_ACCESS(2)
SLUICEWAY_ACCESS(4)
SLUICEWAY_ACCESS(8)
SLUICEWAY_ACCESS(16)
#undef SLUICEWAY_ACCESS

void __tsan_read_range(void* address, std::size_t bytes) {
  touch(address, bytes, Touch::kRead, false, __builtin_return_address(0));
}
void __tsan_write_range(void* address, std::size_t bytes) {
  touch(address, bytes, Touch::kWrite, false, __builtin_return_address(0));
}
void __tsan_vptr_update(void** address, void*) {
  touch(address, sizeof *address, Touch::kWrite, true, __builtin_return_address(0));
}
void __tsan_vptr_read(void** address) {
  touch(address, sizeof *address, Touch::kRead, true, __builtin_return_address(0));
}

void* simt_memcpy(void* dst, const void* src, std::size_t bytes) {
  touch(src, bytes, Touch::kRead, false, __builtin_return_address(0));
  touch(dst, bytes, Touch::kWrite, false, __builtin_return_address(0));
  return std::memcpy(dst, src, bytes);
}
void* simt_memmove(void* dst, const void* src, std::size_t bytes) {
  touch(src, bytes, Touch::kRead, false, __builtin_return_address(0));
  touch(dst, bytes, Touch::kWrite, false, __builtin_return_address(0));
  return std::memmove(dst, src, bytes);
}
void* simt_memset(void* dst, int value, std::size_t bytes) {
  touch(dst, bytes, Touch::kWrite, false, __builtin_return_address(0));
  return std::memset(dst, value, bytes);
}

}  // extern "C"
// NOLINTEND(bugprone-reserved-identifier,readability-identifier-naming)
