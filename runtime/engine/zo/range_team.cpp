#include "runtime/engine/zo/range_team.h"

#include <algorithm>
#include <exception>
#include <latch>

#include "kernels/base/check.h"
#include "runtime/device/device_memory.h"

namespace sluiceway {

RangeTeam::RangeTeam(int threads) {
  SLUICEWAY_CHECK(threads >= 1, "range team: ", threads, " threads, expected 1 or more");
  for (int i = 1; i < threads; ++i) {
    workers_.push_back(std::make_unique<Worker>(Worker::Options{"zo range", -1}));
  }
}

void RangeTeam::run(std::uint64_t count, std::uint64_t unit,
                    const std::function<void(std::uint64_t, std::uint64_t)>& act) {
  const std::uint64_t shares = workers_.size() + 1;
  const std::uint64_t share = round_up((count + shares - 1) / shares, unit);
  std::vector<std::exception_ptr> errors(shares);
  std::latch ended(static_cast<std::ptrdiff_t>(shares));
  const auto run_share = [&](std::uint64_t i) noexcept {
    const std::uint64_t begin = std::min(count, i * share), end = std::min(count, begin + share);
    try {
      if (begin < end) act(begin, end);
    } catch (...) {
      errors[i] = std::current_exception();
    }
    ended.count_down();
  };
  for (std::uint64_t i = 1; i < shares; ++i) {
    try {
      workers_[i - 1]->post([&run_share, i] { run_share(i); });
    } catch (...) {  // Out of memory; those that were posted refer to this frame.
      run_share(i);
    }
  }
  run_share(0);
  ended.wait();
  for (const std::exception_ptr& error : errors) {
    if (error) std::rethrow_exception(error);
  }
}

}  // namespace sluiceway
