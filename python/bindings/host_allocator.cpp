// sluiceway._host_allocator: counts what torch allocates on the CPU, so that the host device has a
// peak to report.
//
// torch takes an allocator in C++ alone, c10::Allocator, so this is the one module that depends on
// libtorch. It is one of its own: without it everything but these counts works with any torch.
#include <c10/core/CPUAllocator.h>
#include <c10/core/impl/alloc_cpu.h>
#include <malloc.h>
#include <pybind11/pybind11.h>

#include <atomic>
#include <cstdint>

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
}  // namespace sluiceway

PYBIND11_MODULE(_host_allocator, m) {
  using namespace sluiceway;
  m.doc() = "Counts what torch allocates on the CPU.";
  m.def("count", &count_host_allocations,
        "From now on count torch's CPU allocations of this process; idempotent.");
  m.def(
      "allocated_bytes", [] { return used_bytes.load(std::memory_order_relaxed); },
      "Bytes that torch holds of what was counted.");
  m.def(
      "peak_bytes", [] { return peak_bytes.load(std::memory_order_relaxed); },
      "The most of them since reset_peak().");
  m.def(
      "reset_peak", [] { peak_bytes.store(used_bytes.load()); },
      "Let the peak be what is held now.");
}
