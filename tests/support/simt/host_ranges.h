// Page-locked memory of the host, and the copies that still use it.
//
// Thread safety: every function from any thread.
#pragma once

#include <cstddef>
#include <cstdint>

namespace sluiceway::simt {

bool register_pages(const void* first, std::size_t bytes);  // False: some are already.
bool unregister_pages(const void* first);                   // False: not the start of a range.
bool page_locked(const void* first, std::size_t bytes);

// The time from the call of one copy until it is done.
class Stay {
 public:
  Stay(const void* first, std::size_t bytes, bool writes);
  Stay(const Stay&) = delete;
  Stay& operator=(const Stay&) = delete;
  ~Stay();

 private:
  std::uint64_t id_;
};

bool awaits_write(const void* first, std::size_t bytes);  // An unfinished copy will write there.
bool in_use(const void* first);  // An unfinished copy uses any byte of this page-locked range.

}  // namespace sluiceway::simt
