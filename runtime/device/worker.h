// A thread that runs jobs in the order in which they were posted, or several threads that start
// them in that order.
//
// A thread sleeps while there are no jobs. Its timers have no slack (a sleep ends on time, not up
// to 50 us later). It takes no signals: those belong to the program's threads. A job must not
// throw.
//
// Ownership:     ~Worker() runs the posted jobs, then joins. If one of its own jobs destroys it, it
//                cannot join: the thread runs the remaining jobs and ends by itself.
// Thread safety: every call from any thread, jobs included; the queue's mutex publishes the jobs.
// Errors:        InvalidArgument if the processor does not exist or is not available to us, or for
//                0 threads. Unavailable if the system has no more threads.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <vector>

namespace sluiceway {

class Worker {
 public:
  using Job = std::function<void()>;

  struct Options {
    std::string name;  // At most 15 characters are kept: a limit of Linux.
    int cpu = -1;      // Processor to run on; -1: the creating thread's processors.
    int threads = 1;
  };

  explicit Worker(const Options& options);
  Worker(const Worker&) = delete;
  Worker& operator=(const Worker&) = delete;
  ~Worker();

  void post(Job job);
  bool is_current() const noexcept;  // True if a job of this worker is calling.

 private:
  struct State;
  void add_thread(const Options& options);
  void finish() noexcept;
  std::shared_ptr<State> state_;  // The threads share it.
  std::vector<std::thread> threads_;
};

}  // namespace sluiceway
