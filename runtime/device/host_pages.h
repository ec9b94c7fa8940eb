// Whole pages of host memory straight from the system: ordinary ones, or huge ones of 2 MiB.
//
// A device that reads or writes memory receives one segment for each contiguous run of it: 4 MiB
// are up to 1024 segments of ordinary pages, but 2 of huge ones. Huge pages come from the pool that
// an administrator has set aside (MAP_HUGETLB), otherwise from free contiguous memory
// (MADV_HUGEPAGE), or are not available: huge_bytes() tells how many there really are.
//
// Ownership: not movable; unmaps on destruction, unless released: then call unmap_pages().
// Errors:    OutOfMemory, with the byte count.
#pragma once

#include <cstddef>
#include <cstdint>

namespace sluiceway {

inline constexpr std::size_t kPageBytes = 4096;
inline constexpr std::size_t kHugePageBytes = std::size_t{2} << 20;

enum class Pages : std::uint8_t { kOrdinary, kHuge };

// Sizes and addresses are multiples of this.
constexpr std::size_t page_bytes(Pages pages) noexcept {
  return pages == Pages::kHuge ? kHugePageBytes : kPageBytes;
}

class HostPages {
 public:
  // Maps at least `bytes` zeros. Huge pages are all resident on return; ordinary ones once touched.
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

// Unmaps what release() returned; pass the constructor's arguments.
void unmap_pages(void* first, std::size_t bytes, Pages pages) noexcept;

// Returns how many of these bytes lie in huge pages now, by /proc/self/smaps; 0 if it does not say.
std::size_t huge_bytes(const void* first, std::size_t bytes);

}  // namespace sluiceway
