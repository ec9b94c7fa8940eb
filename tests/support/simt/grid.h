// A running launch: blocks one after another, their threads as fibers, in shuffled order.
//
// A thread runs until it meets others (barrier, shuffle, vote) or ends; occasionally, after an
// atomic, another thread gets its turn. The first error ends the launch.
//
// Thread safety: the worker that runs it.
#pragma once

#include <simt_device.h>

#include <string>
#include <vector>

#include "tests/support/simt/arena.h"
#include "tests/support/simt/order.h"
#include "tests/support/simt/random.h"
#include "tests/support/simt/witness.h"
#include "tests/support/simt/workshop.h"

namespace sluiceway::simt {

struct Launch {
  Kernel kernel;
  dim3 grid;
  dim3 block;
  std::size_t shared_bytes = 0;
  int device = 0;
};

class Grid {
 public:
  Grid(const Launch& launch, Running& running, Workshop& workshop);
  void run();

  static Grid* current() noexcept { return current_grid; }  // Null: not in a kernel.
  static void run_thread(void*);                            // The body of every fiber.

  // Threads of the kernel call the rest.
  enum class Meeting : std::uint8_t { kBarrier, kWarpBarrier, kShuffle, kVote };

  uint3 thread_index() const noexcept { return thread_index_; }
  uint3 block_index() const noexcept { return block_; }
  const Launch& launch() const noexcept { return launch_; }
  unsigned lane() const noexcept { return thread_ % 32; }
  std::byte* dynamic_shared_memory() const noexcept { return workshop_.dynamic(); }

  // `aligned`: one load or store, whose address is a multiple of its size.
  void access(const void* address, std::size_t bytes, Touch touch, bool aligned, const void* from);
  void barrier(Site site);
  std::uint32_t meet_warp(Meeting meeting, unsigned mask, std::uint32_t value, unsigned source,
                          Site site);
  void fence() { witness_.fence(); }
  void after_atomic(const void* address);
  // Fails in the name of the calling thread.
  [[noreturn]] void fail(cudaError_t error, const std::string& text);

 private:
  enum class State : std::uint8_t { kReady, kMeets, kDone };
  struct Thread {
    State state = State::kReady;
    Meeting meeting = Meeting::kBarrier;
    Site site;
    unsigned mask = 0;
    unsigned source = 0;
    std::uint32_t value = 0;
    unsigned arrived = 0;  // Arrivals for the mask whose first lane this is.
  };

  void run_block();
  void check_stacks();
  void meet_barrier();
  void check_meeting(unsigned other);
  void finish_warp(unsigned mask, unsigned first);
  void wait();
  void fail(unsigned thread, cudaError_t error, const std::string& text);
  void explain_deadlock();
  std::string where(unsigned thread) const;
  std::string name(unsigned thread) const;
  void check_foreign(const void* address, std::size_t bytes, Touch touch, const void* from);
  void check_static(const void* address, std::size_t bytes, Touch touch, const void* from);
  void check_dynamic(const void* address, std::size_t bytes, Touch touch, const void* from);
  [[noreturn]] void refuse(Verdict verdict, const void* byte, Space space, std::size_t bytes,
                           Touch touch, const void* from);
  std::string other_party(Mark mark) const;

  static thread_local Grid* current_grid;

  const Launch& launch_;
  Arena& arena_;
  Running& running_;
  Workshop& workshop_;
  Random random_;
  Witness witness_;
  unsigned threads_per_block_;
  std::vector<std::uint32_t> block_order_;
  uint3 block_{};
  unsigned thread_ = 0;  // The running thread; the next two belong to it.
  uint3 thread_index_{};
  Fiber* fiber_ = nullptr;
  std::vector<Thread> threads_;
  std::vector<unsigned> ready_;
  unsigned done_ = 0;
  bool failed_ = false;
};

}  // namespace sluiceway::simt
