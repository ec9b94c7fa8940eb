#include "tests/support/simt/witness.h"

#include <algorithm>
#include <cstdio>
#include <cstdlib>

namespace sluiceway::simt {
namespace {

void merge(std::vector<std::uint32_t>& into, const std::vector<std::uint32_t>& from) {
  if (into.size() < from.size()) into.resize(from.size());
  for (std::size_t i = 0; i < from.size(); ++i) into[i] = std::max(into[i], from[i]);
}

}  // namespace

std::uint32_t Witness::advance() {
  if (++moment_ > Mark::kLastMoment) {
    std::fprintf(stderr, "simt: more than %u barriers and atomics in one launch\n",
                 Mark::kLastMoment);
    std::abort();
  }
  return moment_;
}

void Witness::begin_block(unsigned threads) {
  block_start_ = interval_start_ = fenced_ = advance();
  block_starts_.push_back(block_start_);
  warp_start_.assign((threads + 31) / 32, block_start_);
  acquired_.clear();
}

void Witness::atomic(const void* address) {
  std::vector<std::uint32_t>& released = released_[address];
  merge(acquired_, released);
  merge(released, acquired_);
  const std::size_t block = block_starts_.size() - 1;
  if (released.size() <= block) released.resize(block + 1);
  released[block] = std::max(released[block], fenced_);
  advance();
}

std::size_t Witness::block_of(Mark mark) const {
  const auto after = std::upper_bound(block_starts_.begin(), block_starts_.end(), mark.moment);
  return static_cast<std::size_t>(after - block_starts_.begin()) - 1;
}

bool Witness::acquired(Mark mark) const {
  const std::size_t block = block_of(mark);
  return block < acquired_.size() && mark.moment < acquired_[block];
}

bool Witness::acquired_all() const {
  const std::size_t earlier = block_starts_.size() - 1;
  if (acquired_.size() < earlier) return false;
  return std::all_of(acquired_.begin(), acquired_.begin() + static_cast<std::ptrdiff_t>(earlier),
                     [](std::uint32_t moment) { return moment != 0; });
}

// Shared memory starts unwritten in each block.
bool Witness::present(Mark mark, Space space) const noexcept {
  if (space == Space::kDevice) return mark.operation > Mark::kUnwritten;
  return of_this_launch(mark) && mark.moment >= block_start_;
}

bool Witness::in_order(Mark before, bool readers, unsigned thread) {
  if (!of_this_launch(before)) return running_.comes_after(before.operation);
  if (readers && before.by == By::kGrid) return acquired_all();
  if (before.moment < block_start_) return acquired(before);
  if (before.moment < interval_start_) return true;
  const bool alone = !readers || before.by == By::kThread;
  if (alone && before.thread == thread) return true;
  const bool same_warp = (alone || before.by == By::kWarp) && before.thread / 32 == thread / 32;
  return same_warp && before.moment < warp_start_[thread / 32];
}

// Returns the readers that the record represents once `thread` has read as well. If an order with
// `thread` implies an order with an earlier reader, that reader need not be remembered.
By Witness::readers_with(Mark before, unsigned thread) const {
  if (!of_this_launch(before)) return By::kThread;
  if (before.by == By::kGrid) return acquired_all() ? By::kThread : By::kGrid;
  if (before.moment < block_start_) return acquired(before) ? By::kThread : By::kGrid;
  if (before.moment < interval_start_) return By::kThread;
  if (before.by == By::kThread && before.thread == thread) return By::kThread;
  if (before.by == By::kBlock || before.thread / 32 != thread / 32) return By::kBlock;
  return before.moment < warp_start_[thread / 32] ? By::kThread : By::kWarp;
}

Verdict Witness::touch(Marks& byte, Space space, Touch touch, unsigned thread) {
  const Mark written = byte.written();
  other_ = written;
  if (space == Space::kDevice && written.operation == Mark::kNobody) return Verdict::kNoMemory;
  const bool has_value = present(written, space);
  if (touch != Touch::kWrite && !has_value) return Verdict::kUnwritten;
  const bool both_atomic = touch == Touch::kAtomic && written.by == By::kAtomic;
  if (has_value && !both_atomic && !in_order(written, false, thread)) return Verdict::kWrittenBy;
  const Mark read = byte.read();
  const bool was_read = present(read, space);
  if (touch == Touch::kRead) {
    // Keeps readers of other streams rather than this one: a later writer that conflicts with this
    // one also conflicts with them.
    if (was_read && !running_.comes_after(read.operation)) return Verdict::kFine;
    const By by = was_read ? readers_with(read, thread) : By::kThread;
    byte.set_read({running_.id(), moment_, thread, by});
    return Verdict::kFine;
  }
  other_ = read;
  if (was_read && !in_order(read, true, thread)) return Verdict::kReadBy;
  byte.set_written(
      {running_.id(), moment_, thread, touch == Touch::kAtomic ? By::kAtomic : By::kThread});
  return Verdict::kFine;
}

}  // namespace sluiceway::simt
