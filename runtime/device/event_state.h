// The object to which an Event refers, and its host form.
//
// Thread safety: every call from any thread.
#pragma once

#include <atomic>
#include <condition_variable>
#include <functional>
#include <mutex>
#include <vector>

#include "runtime/device/event.h"

namespace sluiceway {

struct Event::State {
  State() = default;
  State(const State&) = delete;
  State& operator=(const State&) = delete;
  virtual ~State() = default;

  virtual bool happened() const = 0;
  virtual void wait() const = 0;

  // Calls `action` once: when the event happens, or at once if it has. The action runs on the
  // thread that sees the event, so it must neither block nor throw.
  virtual void then(std::function<void()> action) = 0;
};

// set() stores happened_ with release order under the mutex; a reader that sees it with acquire
// order sees everything that the stream did before.
class HostEvent final : public Event::State {
 public:
  bool happened() const override { return happened_.load(std::memory_order_acquire); }
  void wait() const override;
  void then(std::function<void()> action) override;
  void set() noexcept;

 private:
  mutable std::mutex mutex_;
  mutable std::condition_variable changed_;
  std::atomic<bool> happened_{false};
  std::vector<std::function<void()>> actions_;
};

}  // namespace sluiceway
