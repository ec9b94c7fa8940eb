// The rules of races: what one launch does to each byte, and whether that is allowed.
//
// Two touches of a byte, one of them a write and not both atomic, need an order between them: the
// same thread; a barrier; for lanes of one warp, __syncwarp; for two blocks, a __threadfence and an
// atomic on one address by the first, then an atomic on it by the second; for two operations, the
// order of order.h.
//
// Thread safety: the worker that runs the launch.
#pragma once

#include <cstdint>
#include <unordered_map>
#include <vector>

#include "tests/support/simt/mark.h"
#include "tests/support/simt/order.h"

namespace sluiceway::simt {

enum class Touch : std::uint8_t { kRead, kWrite, kAtomic };
enum class Space : std::uint8_t { kDevice, kShared };

enum class Verdict : std::uint8_t {
  kFine,
  kNoMemory,
  kUnwritten,
  kWrittenBy,  // other() wrote it before, without an order; the next likewise.
  kReadBy,
};

class Witness {
 public:
  explicit Witness(Running& running) : running_(running) {}

  void begin_block(unsigned threads);
  void barrier() { interval_start_ = advance(); }
  void warp_barrier(unsigned warp) { warp_start_[warp] = advance(); }
  void fence() { fenced_ = advance(); }
  void atomic(const void* address);

  Verdict touch(Marks& byte, Space space, Touch touch, unsigned thread);
  Mark other() const noexcept { return other_; }  // From the last verdict that was not fine.
  // Returns the block of a mark of this launch: 0 for the first that ran.
  std::size_t block_of(Mark mark) const;
  bool of_this_launch(Mark mark) const noexcept { return mark.operation == running_.id(); }

 private:
  std::uint32_t advance();
  bool present(Mark mark, Space space) const noexcept;
  bool in_order(Mark before, bool readers, unsigned thread);
  bool acquired(Mark mark) const;
  bool acquired_all() const;
  By readers_with(Mark before, unsigned thread) const;

  Running& running_;
  Mark other_;
  std::uint32_t moment_ = 0;
  std::uint32_t block_start_ = 0;
  std::uint32_t interval_start_ = 0;
  std::uint32_t fenced_ = 0;
  std::vector<std::uint32_t> warp_start_;
  std::vector<std::uint32_t> block_starts_;
  // By block: this block (in released_: a later reader of the address) knows what it did before
  // then.
  std::vector<std::uint32_t> acquired_;
  std::unordered_map<const void*, std::vector<std::uint32_t>> released_;
};

}  // namespace sluiceway::simt
