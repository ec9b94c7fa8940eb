// A thread that runs jobs in the order in which they were posted; or several, which begin them so.
//
// A thread sleeps while there is nothing to do, its timers have no slack (a sleep ends when it
// should, not up to 50 us later), and it takes no signals: those belong to the program's threads.
// A job must not throw.
//
// Ownership:     ~Worker() runs what is posted, then joins. Destroyed by a job of its own, it
//                cannot join: the thread runs what is left and ends by itself.
// Thread safety: every call from any thread, jobs included; the queue's mutex publishes the jobs.
// Errors:        InvalidArgument: the processor does not exist or is not ours, or no thread is
//                asked for. Unavailable: the system has no more threads.
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
    int cpu = -1;      // Processor to run on; -1: those of the thread that creates the worker.
    int threads = 1;
  };

  explicit Worker(const Options& options);
  Worker(const Worker&) = delete;
  Worker& operator=(const Worker&) = delete;
  ~Worker();

  void post(Job job);
  bool is_current() const noexcept;  // Whether the caller is a job of this worker.

 private:
  struct State;
  void add_thread(const Options& options);
  void finish() noexcept;
  std::shared_ptr<State> state_;  // The threads hold it too.
  std::vector<std::thread> threads_;
};

}  // namespace sluiceway
