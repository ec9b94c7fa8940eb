// Threads that perform requests one by one, in order of submission, and sleep in between.
//
// Thread safety: submit() from any thread; the queue's mutex publishes a request to its thread.
// Ownership:     ~IoThreads() waits until every handler has returned.
// Errors:        Unavailable: the system has no more threads.
#pragma once

#include <cstddef>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "runtime/device/worker.h"
#include "runtime/store/raw_io.h"

namespace sluiceway {

class IoThreads {
 public:
  using Perform = std::function<RawResult(const RawRequest&)>;  // Must not throw.

  IoThreads(const std::string& name, std::size_t count, Perform perform);
  IoThreads(const IoThreads&) = delete;
  IoThreads& operator=(const IoThreads&) = delete;
  ~IoThreads();

  void submit(const RawRequest& request, RawIo::Done done);

 private:
  struct Queue;
  std::unique_ptr<Queue> queue_;
  std::vector<std::unique_ptr<Worker>> threads_;  // Joined before the queue goes.
};

}  // namespace sluiceway
