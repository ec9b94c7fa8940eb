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

  // ---- For the reader ----
  void wait(std::size_t weight);    // Until the weight has landed.
  void let_go(std::size_t weight);  // Once per weight.
  void let_go_of_all() noexcept;    // Read or not: the reader has read all, or gives up.

  // ---- For writers ----
  void land(std::size_t weight) noexcept;
  Event read(std::size_t weight) const;  // Happens when the reader lets go of it.
  bool is_read() const noexcept;         // All of it was read, or will not be read any more.
  bool has_failed() const noexcept;
  // Waits for at most `most`; returns whether the weight was read.
  bool wait_until_read(std::size_t weight, std::chrono::milliseconds most);
  bool wait_until_read(std::chrono::milliseconds most);
  // The weights may be of several steps: makes the reader's calls throw. No effect once all was
  // read.
  void fail(std::exception_ptr error) noexcept;

 private:
  struct Weight {
    bool has_landed = false, is_read = false;
    std::shared_ptr<HostEvent> read;
  };

  void throw_if_failed(const std::unique_lock<std::mutex>& lock) const;
  void check_unread(std::size_t weight, const std::unique_lock<std::mutex>& lock) const;

  std::uint64_t step_;
  mutable std::mutex mutex_;  // Guards the members below.
  std::condition_variable changed_;
  std::vector<Weight> weights_;
  std::size_t unread_;
  std::exception_ptr error_;
};

}  // namespace sluiceway
