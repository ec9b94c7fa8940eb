// A word that the host raises and a device's stream waits for, so that a stream can wait for an
// event of a worker thread and no thread blocks for it.
//
//   the host stores 1 with release order; the stream's wait acquires
//
// A word goes back to its ring when the last owner of its signal lets go, but not while a stream
// may still wait for it: only passed() says that none does. Where that cannot be known, since the
// event that would have told was never recorded, the word is lost, and nobody lowers it under the
// stream.
//
// Ownership:     signals are shared; rings outlive them and never free a page, which on CUDA would
//                wait for the device.
// Thread safety: every call from any thread, but for await() on one signal.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <vector>

#include "runtime/device/event.h"

namespace sluiceway {

class SignalWords {
 public:
  static constexpr std::size_t kPageWords = 1024;  // 4 KiB.

  // `new_page` gives kPageWords words that the stream can read; they are never given back.
  explicit SignalWords(std::function<std::uint32_t*()> new_page) : new_page_(std::move(new_page)) {}

  std::uint32_t* take();  // The word that was given back last; a new page when there is none.
  void give_back(std::uint32_t* word) noexcept;

 private:
  void grow(std::unique_lock<std::mutex>& lock);  // Unlocked while the page comes.

  std::function<std::uint32_t*()> new_page_;
  std::mutex mutex_;
  std::vector<std::uint32_t*> free_;
  std::size_t words_ = 0;
};

class HostSignal {
 public:
  static std::shared_ptr<HostSignal> make(SignalWords& words);  // Not raised.

  HostSignal(SignalWords& words, std::uint32_t* word) noexcept : words_(words), word_(word) {}
  HostSignal(const HostSignal&) = delete;
  HostSignal& operator=(const HostSignal&) = delete;
  ~HostSignal();

  void raise() noexcept;

  // `hold` lets a stream wait until the word is 1. Until passed() nobody else gets the word.
  void await(const std::function<void(std::uint32_t*)>& hold);
  void passed() noexcept { awaited_ = false; }  // No stream waits for it any more.

 private:
  SignalWords& words_;
  std::uint32_t* word_;
  bool awaited_ = false;  // Published by the stream that has passed, then by the last owner.
};

// Lets a stream wait for `event`: `hold` enqueues its wait until the word is 1, `record` gives an
// event of the stream behind that. Whatever of it throws, the word is raised when `event` happens.
void hold_until(const Event& event, const std::shared_ptr<HostSignal>& signal,
                const std::function<void(std::uint32_t*)>& hold,
                const std::function<Event()>& record);

}  // namespace sluiceway
