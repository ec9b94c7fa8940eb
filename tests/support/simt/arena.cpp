#include "tests/support/simt/arena.h"

#include <signal.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <iterator>

#include "kernels/base/check.h"

namespace sluiceway::simt {
namespace {

constexpr int kNewPattern = 0xCB;
constexpr int kFreedPattern = 0xDB;

std::size_t span_of(std::size_t bytes) {  // Includes the red zone at the end.
  return (bytes + Arena::kAlignment - 1) / Arena::kAlignment * Arena::kAlignment +
         Arena::kAlignment;
}

void* map(std::size_t bytes, int protection, int flags, int file) {
  void* const first = mmap(nullptr, bytes, protection, flags, file, 0);
  if (first != MAP_FAILED) return first;
  std::perror("simt: mmap");
  std::abort();
}

// Reports what was touched, and lets the access happen again without this handler.
void on_segmentation_fault(int number, siginfo_t* fault, void*) {
  signal(number, SIG_DFL);
  Arena* const arena = Arena::holding(fault->si_addr);
  if (arena == nullptr) return;
  const std::string text =
      concat("simt: the host accesses device memory at ", fault->si_addr, ", ",
             arena->describe(fault->si_addr), "; copy it with cudaMemcpyAsync\n");
  if (write(STDERR_FILENO, text.data(), text.size()) < 0) std::abort();
}

}  // namespace

Arena& Arena::of(int device) {
  // Never destroyed: streams may end after every static object.
  static Arena* const all = new Arena[kDevices];
  return all[device];
}

Arena* Arena::holding(const void* address) noexcept {
  for (int device = 0; device < kDevices; ++device) {
    if (of(device).contains(address)) return &of(device);
  }
  return nullptr;
}

std::byte* Arena::host_view(const void* address) noexcept {
  Arena* const arena = holding(address);
  return arena == nullptr ? nullptr : arena->view_ + arena->offset(address);
}

Arena::Arena() {
  const int file = memfd_create("simt", MFD_CLOEXEC);
  if (file < 0 || ftruncate(file, kBytes) != 0) {
    std::perror("simt: memfd_create");
    std::abort();
  }
  first_ = reinterpret_cast<std::uintptr_t>(map(kBytes, PROT_NONE, MAP_SHARED, file));
  view_ = static_cast<std::byte*>(map(kBytes, PROT_READ | PROT_WRITE, MAP_SHARED, file));
  close(file);
  marks_ = static_cast<Marks*>(map(kBytes * sizeof(Marks), PROT_READ | PROT_WRITE,
                                   MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1));
  struct sigaction action = {};
  action.sa_sigaction = &on_segmentation_fault;
  action.sa_flags = SA_SIGINFO;
  sigaction(SIGSEGV, &action, nullptr);
}

// Searches from the end of the last allocation on, and after a while from the start again.
std::size_t Arena::find_room(std::size_t span) {
  for (std::size_t candidate : {cursor_, kAlignment}) {
    auto next = live_.lower_bound(candidate);
    if (next != live_.begin()) {
      const auto before = std::prev(next);
      candidate = std::max(candidate, before->first + span_of(before->second));
    }
    for (; next != live_.end(); ++next) {
      if (candidate + span <= next->first) return candidate;
      candidate = next->first + span_of(next->second);
    }
    if (candidate + span <= kBytes) return candidate;
  }
  return 0;
}

void* Arena::allocate(std::size_t bytes) {
  if (bytes > kBytes) return nullptr;
  const std::lock_guard lock(mutex_);
  const std::size_t first = find_room(span_of(bytes));
  if (first == 0) return nullptr;
  const std::size_t end = first + span_of(bytes);
  cursor_ = end;
  round_bytes_ += span_of(bytes);
  if (round_bytes_ > kRestBytes) {
    cursor_ = kAlignment;
    round_bytes_ = 0;
  }
  forget_freed(first, end);
  grow_to(end);
  live_.emplace(first, bytes);
  used_bytes_ += bytes;
  scribble(first, bytes, kNewPattern, {.operation = Mark::kUnwritten});
  return reinterpret_cast<void*>(first_ + first);
}

bool Arena::release(void* pointer) {
  const std::lock_guard lock(mutex_);
  const auto found = contains(pointer) ? live_.find(offset(pointer)) : live_.end();
  if (found == live_.end()) return false;
  scribble(found->first, found->second, kFreedPattern, {.operation = Mark::kNobody});
  used_bytes_ -= found->second;
  freed_.insert(*found);
  live_.erase(found);
  return true;
}

void Arena::scribble(std::size_t first, std::size_t bytes, int pattern, Mark written) {
  std::memset(view_ + first, pattern, bytes);
  for (std::size_t i = first; i < first + bytes; ++i) {
    marks_[i].set_written(written);
    marks_[i].set_read({});
  }
}

void Arena::protect(int protection) {
  if (highest_ == 0) return;
  if (mprotect(reinterpret_cast<void*>(first_), highest_, protection) == 0) return;
  std::perror("simt: mprotect");
  std::abort();
}

void Arena::grow_to(std::size_t end) {
  constexpr std::size_t kPage = 4096;
  if (end <= highest_) return;
  highest_ = (end + kPage - 1) / kPage * kPage;
  if (kernels_ > 0) protect(PROT_READ | PROT_WRITE);
}

void Arena::forget_freed(std::size_t first, std::size_t last) {
  auto freed = freed_.lower_bound(first);
  if (freed != freed_.begin() && std::prev(freed)->first + std::prev(freed)->second > first) {
    --freed;
  }
  while (freed != freed_.end() && freed->first < last) freed = freed_.erase(freed);
}

std::size_t Arena::free_bytes() {
  const std::lock_guard lock(mutex_);
  return kBytes - used_bytes_;
}

std::string Arena::describe(const void* address) {
  const std::lock_guard lock(mutex_);
  const std::size_t at = offset(address);
  const auto freed = freed_.upper_bound(at);
  if (freed != freed_.begin()) {
    const auto& [first, bytes] = *std::prev(freed);
    if (at < first + bytes) {
      return concat("byte ", at - first, " of an allocation of ", bytes, " bytes that was freed");
    }
  }
  const auto next = live_.upper_bound(at);
  if (next != live_.begin()) {
    const auto& [first, bytes] = *std::prev(next);
    if (at < first + bytes) {
      return concat("byte ", at - first, " of an allocation of ", bytes, " bytes");
    }
    if (next == live_.end() || at - first - bytes < next->first - at) {
      return concat(at - first - bytes, " bytes past the end of an allocation of ", bytes,
                    " bytes");
    }
  }
  if (next == live_.end()) return "where nothing is allocated";
  return concat(next->first - at, " bytes before an allocation of ", next->second, " bytes");
}

Arena::Access::Access(Arena& arena) : arena_(arena) {
  const std::lock_guard lock(arena_.mutex_);
  if (arena_.kernels_++ == 0) arena_.protect(PROT_READ | PROT_WRITE);
}

Arena::Access::~Access() {
  const std::lock_guard lock(arena_.mutex_);
  if (--arena_.kernels_ == 0) arena_.protect(PROT_NONE);
}

}  // namespace sluiceway::simt
