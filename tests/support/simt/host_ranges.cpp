#include "tests/support/simt/host_ranges.h"

#include <algorithm>
#include <cstdint>
#include <iterator>
#include <map>
#include <mutex>
#include <vector>

namespace sluiceway::simt {
namespace {

struct Range {
  std::uint64_t id;
  std::uintptr_t first, last;
  bool writes;
};

struct Ranges {
  std::mutex mutex;
  std::map<std::uintptr_t, std::uintptr_t> locked;  // First to last.
  std::vector<Range> stays;
  std::uint64_t last_id = 0;
};

Ranges& ranges() {
  static Ranges* const all = new Ranges;
  return *all;
}

std::uintptr_t address(const void* pointer) { return reinterpret_cast<std::uintptr_t>(pointer); }

}  // namespace

bool register_pages(const void* first, std::size_t bytes) {
  const std::lock_guard lock(ranges().mutex);
  const std::uintptr_t begin = address(first);
  const auto next = ranges().locked.lower_bound(begin);
  if (next != ranges().locked.end() && next->first < begin + bytes) return false;
  if (next != ranges().locked.begin() && std::prev(next)->second > begin) return false;
  ranges().locked.emplace(begin, begin + bytes);
  return true;
}

bool unregister_pages(const void* first) {
  const std::lock_guard lock(ranges().mutex);
  return ranges().locked.erase(address(first)) == 1;
}

bool page_locked(const void* first, std::size_t bytes) {
  const std::lock_guard lock(ranges().mutex);
  const auto next = ranges().locked.upper_bound(address(first));
  return next != ranges().locked.begin() && std::prev(next)->second >= address(first) + bytes;
}

Stay::Stay(const void* first, std::size_t bytes, bool writes) {
  const std::lock_guard lock(ranges().mutex);
  id_ = ++ranges().last_id;
  ranges().stays.push_back({id_, address(first), address(first) + bytes, writes});
}

Stay::~Stay() {
  const std::lock_guard lock(ranges().mutex);
  std::erase_if(ranges().stays, [this](const Range& stay) { return stay.id == id_; });
}

bool awaits_write(const void* first, std::size_t bytes) {
  const std::lock_guard lock(ranges().mutex);
  const auto& stays = ranges().stays;
  return std::any_of(stays.begin(), stays.end(), [&](const Range& stay) {
    return stay.writes && stay.first < address(first) + bytes && address(first) < stay.last;
  });
}

bool in_use(const void* first) {
  const std::lock_guard lock(ranges().mutex);
  const auto locked = ranges().locked.find(address(first));
  if (locked == ranges().locked.end()) return false;
  const auto& stays = ranges().stays;
  return std::any_of(stays.begin(), stays.end(), [&](const Range& stay) {
    return stay.first < locked->second && locked->first < stay.last;
  });
}

}  // namespace sluiceway::simt
