#include "runtime/device/host_pages.h"

#include <linux/mman.h>
#include <sys/mman.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <fstream>
#include <string>
#include <system_error>
#include <utility>

#include "kernels/base/check.h"

namespace sluiceway {
namespace {

[[noreturn]] void refuse(std::size_t bytes, int error_number) {
  throw OutOfMemory(concat("allocate_pinned_bytes: the system could not allocate ",
                           format_bytes(bytes),
                           " of host memory: ", std::generic_category().message(error_number),
                           "; free memory, or lower the budget"));
}

void* map(std::size_t bytes, int flags) noexcept {
  return mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | flags, -1, 0);
}

// Returns the part of a larger mapping that starts on a huge page; unmaps the rest.
void* map_aligned(std::size_t bytes) noexcept {
  void* const mapped = map(bytes + kHugePageBytes, 0);
  if (mapped == MAP_FAILED) return mapped;
  auto* const begin = static_cast<std::byte*>(mapped);
  const std::size_t before = -reinterpret_cast<std::uintptr_t>(begin) % kHugePageBytes;
  if (before > 0) munmap(begin, before);
  munmap(begin + before + bytes, kHugePageBytes - before);
  return begin + before;
}

// Faults every page in, so that huge pages that are available now are used.
int populate(void* first, std::size_t bytes) noexcept {
  // A kernel without huge pages uses ordinary ones, as huge_bytes() shows.
  madvise(first, bytes, MADV_HUGEPAGE);
#ifdef MADV_POPULATE_WRITE
  if (madvise(first, bytes, MADV_POPULATE_WRITE) == 0) return 0;
  if (errno != EINVAL) return errno;  // EINVAL: a kernel before 5.14.
#endif
  std::memset(first, 0, bytes);
  return 0;
}

void* map_huge(std::size_t bytes) {
  void* first = map(bytes, MAP_HUGETLB | MAP_HUGE_2MB);
  if (first == MAP_FAILED) first = map_aligned(bytes);
  if (first == MAP_FAILED) return first;
  if (const int error_number = populate(first, bytes); error_number != 0) {
    munmap(first, bytes);
    errno = error_number;
    return MAP_FAILED;
  }
  return first;
}

std::size_t rounded(std::size_t bytes, Pages pages) noexcept {
  return (bytes + page_bytes(pages) - 1) / page_bytes(pages) * page_bytes(pages);
}

}  // namespace

HostPages::HostPages(std::size_t bytes, Pages pages) : bytes_(rounded(bytes, pages)) {
  if (bytes > SIZE_MAX - 2 * kHugePageBytes) refuse(bytes, ENOMEM);
  void* const first = pages == Pages::kHuge ? map_huge(bytes_) : map(bytes_, 0);
  if (first == MAP_FAILED) refuse(bytes, errno);
  first_ = first;
}

HostPages::~HostPages() {
  if (first_ != nullptr) munmap(first_, bytes_);
}

void* HostPages::release() noexcept { return std::exchange(first_, nullptr); }

void unmap_pages(void* first, std::size_t bytes, Pages pages) noexcept {
  munmap(first, rounded(bytes, pages));
}

// Adds, for each mapping that overlaps, its huge bytes, at most the overlap.
std::size_t huge_bytes(const void* first, std::size_t bytes) {
  const auto begin = reinterpret_cast<std::uintptr_t>(first);
  const std::uintptr_t end = begin + bytes;
  std::ifstream smaps("/proc/self/smaps");
  std::size_t overlap = 0, huge = 0;
  for (std::string line; std::getline(smaps, line);) {
    unsigned long from = 0, to = 0, kib = 0;
    if (std::sscanf(line.c_str(), "%lx-%lx ", &from, &to) == 2) {
      const std::uintptr_t low = std::max<std::uintptr_t>(from, begin);
      const std::uintptr_t high = std::min<std::uintptr_t>(to, end);
      overlap = high > low ? high - low : 0;
    } else if (std::sscanf(line.c_str(), "AnonHugePages: %lu kB", &kib) == 1 ||
               std::sscanf(line.c_str(), "Private_Hugetlb: %lu kB", &kib) == 1) {
      huge += std::min<std::size_t>(kib * 1024, overlap);
    }
  }
  return huge;
}

}  // namespace sluiceway
