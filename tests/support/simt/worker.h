// A CUDA stream: a thread that runs enqueued work in order.
//
// Ownership:     the destructor finishes the enqueued work.
// Thread safety: enqueue calls and wait_idle() from any thread.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <string>

#include "tests/support/simt/board.h"
#include "tests/support/simt/order.h"
#include "tests/support/simt/workshop.h"

namespace sluiceway::simt {

class Worker {
 public:
  enum class Pace { kLate, kPrompt };  // Prompt: nobody else sees when its operations happen.
  Worker(int device, Pace pace);
  Worker(const Worker&) = delete;
  Worker& operator=(const Worker&) = delete;
  ~Worker();

  // For work that touches memory. Some starts late, after `before`, so that code which does not
  // wait for it comes too early. Dropped if the device fails before it runs.
  void enqueue(std::string name, std::function<void(Running&, Workshop&)> work,
               std::function<void()> before = nullptr);

  // For ordering: `work` gets what this stream has waited for, and may add to it. Never dropped.
  void enqueue_control(std::function<void(Clock&)> work);

  int device() const noexcept { return device_; }

  std::string name() const { return standing_.name(); }

  void wait_idle(const char* call);  // The host waits, and has then waited for all of it.
  static void wait_until_all_are_idle();

 private:
  struct Task {
    std::uint32_t operation = 0;  // 0: control.
    std::shared_ptr<const Clock> host;
    std::function<void(Running&, Workshop&)> work;
    std::function<void()> before;
    std::function<void(Clock&)> control;
  };

  void push(Task task);
  void work(Workshop& workshop);
  void come_late(std::uint32_t operation) const;
  void perform(Task& task, Workshop& workshop);

  int device_;
  Pace pace_;
  std::uint32_t number_;
  Standing standing_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<Task> tasks_;
  std::uint64_t pushed_ = 0;
  std::uint64_t finished_ = 0;
  bool closing_ = false;
  bool closed_ = false;
  Clock clock_;  // Changed by the worker under mutex_.
};

}  // namespace sluiceway::simt
