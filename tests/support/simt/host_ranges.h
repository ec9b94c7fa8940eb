// Memory of the host that is page-locked, and what copies still have to do with it.
//
// Thread safety: every function from any thread.
#pragma once

#include <cstddef>
#include <cstdint>

namespace sluiceway::simt {

bool register_pages(const void* first, std::size_t bytes);  // False: some are already.
bool unregister_pages(const void* first);                   // False: not the start of a range.
bool page_locked(const void* first, std::size_t bytes);

// The stay of one copy, from its call until it is done.
class Stay {
 public:
  Stay(const void* first, std::size_t bytes, bool writes);
  Stay(const Stay&) = delete;
  Stay& operator=(const Stay&) = delete;
  ~Stay();

 private:
  std::uint64_t id_;
};

bool awaits_write(const void* first, std::size_t bytes);  // By a copy that is not done.
bool in_use(const void* first);                           // Any byte of a page-locked range.

}  // namespace sluiceway::simt
