#include "tests/support/simt/grid.h"

#include <cstdio>
#include <cstdlib>
#include <numeric>
#include <utility>

#include "kernels/base/check.h"
#include "tests/support/simt/findings.h"
#include "tests/support/simt/names.h"
#include "tests/support/simt/symbols.h"

namespace sluiceway::simt {

thread_local Grid* Grid::current_grid = nullptr;

Grid::Grid(const Launch& launch, Running& running, Workshop& workshop)
    : launch_(launch),
      arena_(Arena::of(launch.device)),
      running_(running),
      workshop_(workshop),
      random_(running.id()),
      witness_(running),
      threads_per_block_(launch.block.x * launch.block.y * launch.block.z),
      block_order_(std::size_t{launch.grid.x} * launch.grid.y * launch.grid.z),
      threads_(threads_per_block_) {
  workshop_.make_fibers(threads_per_block_);
  std::iota(block_order_.begin(), block_order_.end(), 0U);
  random_.shuffle(block_order_);
}

void Grid::run() {
  const Arena::Access access(arena_);
  current_grid = this;
  for (const std::uint32_t block : block_order_) {
    block_ = unflatten(block, launch_.grid);
    run_block();
    if (failed_) break;
  }
  current_grid = nullptr;
  check_stacks();
}

void Grid::check_stacks() {
  for (unsigned thread = 0; thread < threads_per_block_; ++thread) {
    if (!workshop_.fiber(thread).overflowed()) continue;
    std::fprintf(stderr, "simt: kernel %s needs more than %zu bytes of stack\n",
                 function_name(launch_.kernel.address).c_str(), Fiber::kStackBytes);
    std::abort();
  }
}

void Grid::run_thread(void*) {
  Grid& grid = *current_grid;
  grid.launch_.kernel.call(grid.launch_.kernel.params.get());
  grid.threads_[grid.thread_].state = State::kDone;
  ++grid.done_;
}

void Grid::run_block() {
  witness_.begin_block(threads_per_block_);
  threads_.assign(threads_per_block_, {});
  done_ = 0;
  ready_.resize(threads_per_block_);
  std::iota(ready_.begin(), ready_.end(), 0U);
  while (!failed_ && done_ < threads_per_block_) {
    if (ready_.empty()) {
      meet_barrier();
      continue;
    }
    std::swap(ready_[random_.below(static_cast<std::uint32_t>(ready_.size()))], ready_.back());
    thread_ = ready_.back();
    ready_.pop_back();
    thread_index_ = unflatten(thread_, launch_.block);
    fiber_ = &workshop_.fiber(thread_);
    fiber_->resume();
  }
  if (!failed_) return;
  for (unsigned thread = 0; thread < threads_per_block_; ++thread) {
    if (threads_[thread].state != State::kDone) workshop_.fiber(thread).drop();
  }
}

void Grid::wait() { fiber_->pause(); }

void Grid::after_atomic(const void* address) {
  witness_.atomic(address);
  if (random_.below(4) != 0) return;
  ready_.push_back(thread_);
  wait();
}

void Grid::fail(cudaError_t error, const std::string& text) {
  fail(thread_, error, text);
  fiber_->drop();
  for (;;) wait();  // Never resumed after a drop; the loop only tells the compiler so.
}

void Grid::fail(unsigned thread, cudaError_t error, const std::string& text) {
  failed_ = true;
  report(error, concat("simt: kernel ", function_name(launch_.kernel.address), ", block ",
                       to_text(block_), ", ", name(thread), ": ", text));
}

std::string Grid::name(unsigned thread) const {
  return concat("thread ", to_text(unflatten(thread, launch_.block)));
}

}  // namespace sluiceway::simt
