#include "runtime/device/signal_word.h"

#include <atomic>
#include <utility>

#include "runtime/device/event_state.h"

namespace sluiceway {
namespace {

constexpr std::uint32_t kRaised = 1;

}  // namespace

std::uint32_t* SignalWords::take() {
  std::unique_lock lock(mutex_);
  while (free_.empty()) grow(lock);
  std::uint32_t* const word = free_.back();
  free_.pop_back();
  return word;
}

void SignalWords::give_back(std::uint32_t* word) noexcept {
  const std::lock_guard lock(mutex_);
  free_.push_back(word);  // Never allocates: grow() has made room for every word.
}

// The driver may wait for the device before it gives a page, and the device for a thread that has
// to give a word back first.
void SignalWords::grow(std::unique_lock<std::mutex>& lock) {
  lock.unlock();
  std::uint32_t* const page = new_page_();
  lock.lock();
  free_.reserve(words_ + kPageWords);
  for (std::size_t i = 0; i < kPageWords; ++i) free_.push_back(page + i);
  words_ += kPageWords;
}

std::shared_ptr<HostSignal> HostSignal::make(SignalWords& words) {
  std::uint32_t* const word = words.take();
  std::atomic_ref(*word).store(0, std::memory_order_relaxed);
  return std::make_shared<HostSignal>(words, word);
}

HostSignal::~HostSignal() {
  if (!awaited_) words_.give_back(word_);
}

void HostSignal::raise() noexcept {
  std::atomic_ref(*word_).store(kRaised, std::memory_order_release);
}

void HostSignal::await(const std::function<void(std::uint32_t*)>& hold) {
  awaited_ = true;
  hold(word_);
}

void hold_until(const Event& event, const std::shared_ptr<HostSignal>& signal,
                const std::function<void(std::uint32_t*)>& hold,
                const std::function<Event()>& record) {
  // First, so that no stream is told to wait for a word that nobody will raise.
  event.state()->then([signal] { signal->raise(); });
  signal->await(hold);
  record().state()->then([signal] { signal->passed(); });
}

}  // namespace sluiceway
