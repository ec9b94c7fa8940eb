// Threads that share the elements of one array: the caller and some workers take one range each.
//
// Ownership:     owns its workers.
// Thread safety: one call at a time.
// Errors:        the first error of a range, after every range has ended.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

#include "runtime/device/worker.h"

namespace sluiceway {

class RangeTeam {
 public:
  explicit RangeTeam(int threads);  // InvalidArgument: less than 1.

  // Calls `act` for ranges [begin, end) of [0, count), each beginning at a multiple of `unit`.
  void run(std::uint64_t count, std::uint64_t unit,
           const std::function<void(std::uint64_t begin, std::uint64_t end)>& act);

 private:
  std::vector<std::unique_ptr<Worker>> workers_;
};

}  // namespace sluiceway
