#include "tests/support/simt/workshop.h"

#include <link.h>
#include <sys/mman.h>

#include <cstdio>
#include <cstdlib>

namespace sluiceway::simt {
namespace {

std::byte* reserve(std::size_t bytes) {
  void* const first = mmap(nullptr, bytes, PROT_READ | PROT_WRITE,
                           MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (first == MAP_FAILED) {
    std::perror("simt: mmap");
    std::abort();
  }
  return static_cast<std::byte*>(first);
}

struct ThreadLocalStorage {
  std::byte* first = nullptr;
  std::size_t bytes = 0;
};

// Thread-local storage of the program itself, for the calling thread.
ThreadLocalStorage thread_local_storage() {
  ThreadLocalStorage found;
  dl_iterate_phdr(
      [](dl_phdr_info* module, std::size_t, void* out) {
        auto& storage = *static_cast<ThreadLocalStorage*>(out);
        for (int i = 0; i < module->dlpi_phnum; ++i) {
          if (module->dlpi_phdr[i].p_type != PT_TLS) continue;
          storage.first = static_cast<std::byte*>(module->dlpi_tls_data);
          storage.bytes = module->dlpi_phdr[i].p_memsz;
        }
        return 1;
      },
      &found);
  return found;
}

}  // namespace

Workshop::Workshop(void (*body)(void*))
    : body_(body), stacks_(reserve(kThreads * Fiber::kStackBytes)) {
  const ThreadLocalStorage storage = thread_local_storage();
  static_ = {storage.first, storage.bytes, nullptr};
  dynamic_ = {nullptr, 2 * kSharedBytes, nullptr};
  dynamic_.first = reserve(dynamic_.bytes);
  for (Range* range : {&static_, &dynamic_}) {
    range->marks = reinterpret_cast<Marks*>(reserve((range->bytes + 1) * sizeof(Marks)));
  }
}

Workshop::~Workshop() {
  fibers_.clear();
  munmap(stacks_, kThreads * Fiber::kStackBytes);
  munmap(dynamic_.first, dynamic_.bytes);
  for (const Range& range : {static_, dynamic_}) {
    munmap(range.marks, (range.bytes + 1) * sizeof(Marks));
  }
}

void Workshop::make_fibers(unsigned threads) {
  while (fibers_.size() < threads) {
    fibers_.push_back(
        std::make_unique<Fiber>(stacks_ + fibers_.size() * Fiber::kStackBytes, body_, nullptr));
  }
}

Marks* Workshop::marks(const void* address) const noexcept {
  for (const Range* range : {&static_, &dynamic_}) {
    if (range->holds(address)) {
      return range->marks + (static_cast<const std::byte*>(address) - range->first);
    }
  }
  return nullptr;
}

std::size_t Workshop::static_offset(const void* address) const noexcept {
  if (!static_.holds(address)) return kElsewhere;
  return static_cast<std::size_t>(static_cast<const std::byte*>(address) - static_.first);
}

std::size_t Workshop::dynamic_bytes_from(const void* address) const noexcept {
  if (!dynamic_.holds(address)) return 0;
  return dynamic_.bytes -
         static_cast<std::size_t>(static_cast<const std::byte*>(address) - dynamic_.first);
}

}  // namespace sluiceway::simt
