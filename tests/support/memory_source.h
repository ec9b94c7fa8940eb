// A WeightSource over memory: reads complete late, in any order, on threads of its own, or fail.
//
// Data arrives in its place when the read completes. Until then there is poison, also after it up
// to the end of the block. ~MemorySource() expects that no read is outstanding.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <condition_variable>
#include <cstring>
#include <functional>
#include <mutex>
#include <optional>
#include <span>
#include <thread>
#include <utility>
#include <vector>

#include "runtime/engine/stream/ring_client.h"
#include "tests/support/rng.h"

namespace sluiceway::test {

class MemorySource final : public WeightSource {
 public:
  struct Options {
    std::uint64_t seed = 1;
    std::uint64_t block_bytes = 512;
    int threads = 2;
    bool open = true;  // Otherwise reads stay out until open() or complete().
    // Called before a read completes; its exception becomes the read's error.
    std::function<void(std::size_t weight)> before_end = {};
  };

  MemorySource(std::vector<std::span<const std::byte>> weights, Options options)
      : weights_(std::move(weights)),
        options_(std::move(options)),
        rng_(options_.seed),
        open_(options_.open) {
    for (int i = 0; i < options_.threads; ++i) threads_.emplace_back([this] { run(); });
  }
  MemorySource(const MemorySource&) = delete;
  MemorySource& operator=(const MemorySource&) = delete;
  ~MemorySource() override {
    {
      const std::lock_guard lock(mutex_);
      EXPECT_EQ(out_, 0) << "reads";
      stopping_ = true;
      changed_.notify_all();
    }
    for (std::thread& thread : threads_) thread.join();
  }

  std::uint64_t read_bytes(std::size_t weight) const override {
    const std::uint64_t block = options_.block_bytes;
    return (weights_.at(weight).size() + block - 1) / block * block;
  }
  void read(std::size_t weight, std::span<std::byte> into, Done done) override {
    EXPECT_EQ(into.size(), read_bytes(weight));
    std::fill(into.begin(), into.end(), std::byte{0xCD});
    const std::lock_guard lock(mutex_);
    most_out_ = std::max(most_out_, ++out_);
    waiting_.push_back({weight, into, std::move(done)});
    changed_.notify_all();
  }

  void open() {
    const std::lock_guard lock(mutex_);
    open_ = true;
    changed_.notify_all();
  }
  // Completes the oldest outstanding read of the weight on this thread. Returns false if there is
  // none.
  bool complete(std::size_t weight) {
    std::unique_lock lock(mutex_);
    const auto found = std::find_if(waiting_.begin(), waiting_.end(),
                                    [&](const Request& r) { return r.weight == weight; });
    if (found == waiting_.end()) return false;
    finish(lock, found);
    return true;
  }
  int out() const {
    const std::lock_guard lock(mutex_);
    return out_;
  }
  int most_out() const {
    const std::lock_guard lock(mutex_);
    return most_out_;
  }

 private:
  struct Request {
    std::size_t weight;
    std::span<std::byte> into;
    Done done;
  };

  void finish(std::unique_lock<std::mutex>& lock, std::vector<Request>::iterator which) {
    Request request = std::move(*which);
    waiting_.erase(which);
    lock.unlock();
    std::exception_ptr error;
    try {
      if (options_.before_end) options_.before_end(request.weight);
      const std::span<const std::byte> bytes = weights_[request.weight];
      std::memcpy(request.into.data(), bytes.data(), bytes.size());
    } catch (...) {
      error = std::current_exception();
    }
    lock.lock();
    --out_;  // Before anybody learns of it.
    lock.unlock();
    request.done(error);
    request.done = nullptr;
    lock.lock();
  }

  void run() {
    std::unique_lock lock(mutex_);
    for (;;) {
      changed_.wait(lock, [&] { return stopping_ || (open_ && !waiting_.empty()); });
      if (stopping_) return;
      finish(lock, waiting_.begin() + rng_.below(std::ssize(waiting_)));
    }
  }

  const std::vector<std::span<const std::byte>> weights_;
  const Options options_;
  mutable std::mutex mutex_;
  std::condition_variable changed_;
  Rng rng_;
  bool open_, stopping_ = false;
  int out_ = 0, most_out_ = 0;
  std::vector<Request> waiting_;
  std::vector<std::thread> threads_;
};

}  // namespace sluiceway::test
