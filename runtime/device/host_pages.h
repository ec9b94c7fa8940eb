// Whole pages of host memory straight from the system: ordinary ones, or huge ones of 2 MiB.
//
// A device that reads or writes memory is given one segment for each contiguous run of it: 4 MiB
// are up to 1024 segments of ordinary pages, and 2 of huge ones. Huge pages come from the pool that
// an administrator has set aside (MAP_HUGETLB), else from what is free and contiguous now
// (MADV_HUGEPAGE), else not at all: huge_bytes() says how many there really are.
//
// Ownership: move-free; unmaps on destruction unless released, then unmap_pages() does it.
// Errors:    OutOfMemory, with the byte count.
#pragma once

#include <cstddef>
#include <cstdint>

namespace sluiceway {

inline constexpr std::size_t kPageBytes = 4096;
inline constexpr std::size_t kHugePageBytes = std::size_t{2} << 20;

enum class Pages : std::uint8_t { kOrdinary, kHuge };

// What sizes and addresses are multiples of.
constexpr std::size_t page_bytes(Pages pages) noexcept {
  return pages == Pages::kHuge ? kHugePageBytes : kPageBytes;
}

class HostPages {
 public:
  // At least `bytes`, zeros. Huge pages are all there on return; ordinary ones when touched.
  HostPages(std::size_t bytes, Pages pages);
  HostPages(const HostPages&) = delete;
  HostPages& operator=(const HostPages&) = delete;
  ~HostPages();

  void* get() const noexcept { return first_; }
  std::size_t size() const noexcept { return bytes_; }
  void* release() noexcept;

 private:
  std::size_t bytes_;
  void* first_ = nullptr;
};

// Of what release() gave away, with the arguments of the constructor.
void unmap_pages(void* first, std::size_t bytes, Pages pages) noexcept;

// How many of these bytes lie in huge pages now, as /proc/self/smaps says; 0 where it says nothing.
std::size_t huge_bytes(const void* first, std::size_t bytes);

}  // namespace sluiceway
