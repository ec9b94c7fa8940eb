// Counts what torch allocates on the CPU, so that the host device has a peak to report.
#include <c10/core/CPUAllocator.h>
#include <c10/core/impl/alloc_cpu.h>
#include <malloc.h>

#include <atomic>
#include <cstdint>

#include "python/bindings/bindings.h"

namespace sluiceway {
namespace {

std::atomic<std::int64_t> used_bytes{0};
std::atomic<std::int64_t> peak_bytes{0};

void count(std::int64_t delta) noexcept {
  const std::int64_t now = used_bytes.fetch_add(delta, std::memory_order_relaxed) + delta;
  std::int64_t peak = peak_bytes.load(std::memory_order_relaxed);
  while (now > peak && !peak_bytes.compare_exchange_weak(peak, now, std::memory_order_relaxed)) {
  }
}

std::int64_t usable_bytes(void* pointer) noexcept {
  return static_cast<std::int64_t>(malloc_usable_size(pointer));
}

// torch takes a data pointer for its own context (raw_allocate), so there is no room for a size
// beside it: the system's allocator is asked instead, which counts its rounding too.
class CountingAllocator final : public c10::Allocator {
 public:
  at::DataPtr allocate(std::size_t bytes) override {
    void* pointer = c10::alloc_cpu(bytes);
    if (pointer != nullptr) count(usable_bytes(pointer));
    return {pointer, pointer, &CountingAllocator::free, at::Device(at::kCPU)};
  }

  at::DeleterFnPtr raw_deleter() const override { return &CountingAllocator::free; }

  void copy_data(void* to, const void* from, std::size_t bytes) const override {
    default_copy_data(to, from, bytes);
  }

 private:
  static void free(void* pointer) {
    if (pointer == nullptr) return;
    count(-usable_bytes(pointer));
    c10::free_cpu(pointer);
  }
};

void count_host_allocations() {
  static CountingAllocator* const allocator = [] {
    // Lives as long as the process: tensors may be freed after every static is gone.
    auto* made = new CountingAllocator;
    c10::SetCPUAllocator(made, /*priority=*/100);
    return made;
  }();
  static_cast<void>(allocator);
}

}  // namespace

void bind_host_memory(py::module_& m) {
  m.def("count_host_allocations", &count_host_allocations,
        "From now on count torch's CPU allocations of this process; idempotent.");
  m.def(
      "host_allocated_bytes", [] { return used_bytes.load(std::memory_order_relaxed); },
      "Bytes that torch holds of what was counted.");
  m.def(
      "host_peak_bytes", [] { return peak_bytes.load(std::memory_order_relaxed); },
      "The most of them since reset_host_peak().");
  m.def(
      "reset_host_peak", [] { peak_bytes.store(used_bytes.load()); },
      "Let the peak be what is held now.");
}

}  // namespace sluiceway
