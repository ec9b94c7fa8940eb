#include "runtime/device/denormals.h"

#include <dlfcn.h>

#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace sluiceway {
namespace {

#if defined(__x86_64__)
constexpr unsigned kFlush = 0x8040;  // Flushes results (FTZ) and operands (DAZ).

bool set_here(bool on) noexcept {
  const unsigned before = _mm_getcsr();
  _mm_setcsr(on ? before | kFlush : before & ~kFlush);
  return (before & kFlush) == kFlush;
}
#else
bool set_here(bool) noexcept { return false; }
#endif

void set_in_pool(void* on) { set_here(*static_cast<bool*>(on)); }

}  // namespace

bool flush_denormals(bool on) noexcept {
  const bool before = set_here(on);
  // Uses the pool of torch's own libgomp: linking one would make a second pool.
  using Parallel = void (*)(void (*)(void*), void*, unsigned, unsigned);
  const auto parallel = reinterpret_cast<Parallel>(dlsym(RTLD_DEFAULT, "GOMP_parallel"));
  if (parallel != nullptr) parallel(set_in_pool, &on, /*num_threads=*/0, /*flags=*/0);
  return before;
}

}  // namespace sluiceway
