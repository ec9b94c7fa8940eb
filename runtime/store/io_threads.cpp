#include "runtime/store/io_threads.h"

#include <condition_variable>
#include <deque>
#include <mutex>
#include <utility>

namespace sluiceway {

struct IoThreads::Queue {
  struct Entry {
    RawRequest request;
    RawIo::Done done;
  };

  bool next(Entry& entry) {
    std::unique_lock lock(mutex);
    changed.wait(lock, [this] { return stopping || !entries.empty(); });
    if (entries.empty()) return false;
    entry = std::move(entries.front());
    entries.pop_front();
    return true;
  }

  void run() noexcept {
    // Frees what a handler holds before the next request starts.
    for (Entry entry; next(entry); entry.done = nullptr) entry.done(perform(entry.request));
  }

  void stop() noexcept {
    const std::lock_guard lock(mutex);
    stopping = true;
    changed.notify_all();
  }

  Perform perform;
  std::mutex mutex;
  std::condition_variable changed;
  std::deque<Entry> entries;
  bool stopping = false;
};

IoThreads::IoThreads(const std::string& name, std::size_t count, Perform perform)
    : queue_(std::make_unique<Queue>()) {
  queue_->perform = std::move(perform);
  try {
    for (std::size_t i = 0; i < count; ++i) {
      threads_.push_back(std::make_unique<Worker>(Worker::Options{.name = name}));
      threads_.back()->post([queue = queue_.get()] { queue->run(); });
    }
  } catch (...) {
    queue_->stop();
    throw;
  }
}

IoThreads::~IoThreads() { queue_->stop(); }

void IoThreads::submit(const RawRequest& request, RawIo::Done done) {
  const std::lock_guard lock(queue_->mutex);
  queue_->entries.push_back({request, std::move(done)});
  queue_->changed.notify_one();
}

}  // namespace sluiceway
