// Weights in host memory at one step, for a reader while later steps are made.
//
// A weight lands when its host memory has reached the step. A writer of a later step waits there
// until the reader lets go of the weight. So nothing is copied, and a reader slower than a pass
// delays the next pass only at the weights it brings back.
//
// Invariants, which the tests name:
//   S1  Nobody writes to a landed weight before the reader lets go of it.
//   S2  When the next step is made, every weight has landed, or is on its way through lanes that
//       wait for nobody else. So a reader waits for no pass, and a writer only for the reader.
//   S3  A weight that did not arrive has not landed.
//
// Thread safety: every call from any thread. The mutex publishes that a weight has landed, and that
//                it was read.
// Errors:        after fail(), wait() and let_go() throw its exception. InvalidArgument for a
//                weight that was let go before, whose memory others may write. Data read are valid
//                once let_go() has returned.
#pragma once

#include <chrono>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <exception>
#include <memory>
#include <mutex>
#include <vector>

#include "runtime/device/event.h"

namespace sluiceway {

class HostEvent;

class MasterSnapshot {
 public:
  MasterSnapshot(std::uint64_t step, std::size_t weights);

  std::uint64_t step() const noexcept { return step_; }

  // ---- Who reads ----
  void wait(std::size_t weight);    // Until it has landed.
  void let_go(std::size_t weight);  // Once.
  void let_go_of_all() noexcept;    // Read or not: whoever has read all, or gives up.

  // ---- Who writes ----
  void land(std::size_t weight) noexcept;
  Event read(std::size_t weight) const;  // Happens when it was let go of.
  bool is_read() const noexcept;         // All of it, or nobody is to read it any more.
  bool has_failed() const noexcept;
  // At most so long; whether it was read.
  bool wait_until_read(std::size_t weight, std::chrono::milliseconds most);
  bool wait_until_read(std::chrono::milliseconds most);
  // Weights may be of no single step: who reads is told. Nothing where all of it was read.
  void fail(std::exception_ptr error) noexcept;

 private:
  struct Weight {
    bool has_landed = false, is_read = false;
    std::shared_ptr<HostEvent> read;
  };

  void throw_if_failed(const std::unique_lock<std::mutex>& lock) const;
  void check_unread(std::size_t weight, const std::unique_lock<std::mutex>& lock) const;

  std::uint64_t step_;
  mutable std::mutex mutex_;  // Of what follows.
  std::condition_variable changed_;
  std::vector<Weight> weights_;
  std::size_t unread_;
  std::exception_ptr error_;
};

}  // namespace sluiceway
