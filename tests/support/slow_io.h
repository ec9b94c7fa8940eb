// A drive whose completions come late, with delays from a seed, around one that works.
//
// Ownership: ~SlowIo() delivers delayed completions first.
#pragma once

#include <chrono>
#include <condition_variable>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <utility>

#include "runtime/device/worker.h"
#include "runtime/store/raw_io.h"
#include "tests/support/rng.h"

namespace sluiceway::test {

class SlowIo final : public RawIo {
 public:
  SlowIo(std::unique_ptr<RawIo> inner, std::uint64_t seed, std::chrono::microseconds most)
      : RawIo(inner->properties()), most_(most), delays_(seed), inner_(std::move(inner)) {
    thread_.emplace(Worker::Options{.name = "slow io"});
    thread_->post([this] { run(); });
  }

  ~SlowIo() override {
    inner_.reset();  // Every completion is in `late_` now.
    {
      const std::lock_guard lock(mutex_);
      stopping_ = true;
      changed_.notify_all();
    }
    thread_.reset();
  }

  void submit(const RawRequest& request, Done done) override {
    inner_->submit(request, [this, done = std::move(done)](RawResult result) {
      const std::lock_guard lock(mutex_);
      const auto delay = std::chrono::microseconds(delays_.below(most_.count() + 1));
      late_.emplace(Clock::now() + delay, std::pair(done, result));
      changed_.notify_all();
    });
  }
  int flush() noexcept override { return inner_->flush(); }
  int grow(std::uint64_t size_bytes) noexcept override { return inner_->grow(size_bytes); }
  std::uint64_t size_bytes() const noexcept override { return inner_->size_bytes(); }

 private:
  using Clock = std::chrono::steady_clock;

  void run() noexcept {
    std::unique_lock lock(mutex_);
    while (!stopping_ || !late_.empty()) {
      if (late_.empty()) {
        changed_.wait(lock);
      } else if (late_.begin()->first > Clock::now()) {
        changed_.wait_until(lock, Clock::time_point(late_.begin()->first));
      } else {
        const auto next = late_.extract(late_.begin());
        lock.unlock();
        next.mapped().first(next.mapped().second);
        lock.lock();
      }
    }
  }

  const std::chrono::microseconds most_;
  std::mutex mutex_;
  std::condition_variable changed_;
  Rng delays_;
  std::multimap<Clock::time_point, std::pair<Done, RawResult>> late_;
  bool stopping_ = false;
  std::unique_ptr<RawIo> inner_;
  std::optional<Worker> thread_;
};

}  // namespace sluiceway::test
