#include "runtime/device/paced_copies.h"

#include <atomic>
#include <mutex>
#include <utility>

#include "runtime/device/cuda_backend.h"
#include "runtime/device/signal_word.h"
#include "runtime/device/worker.h"

namespace sluiceway {

struct PacedCopies::Timer {
  Timer(std::shared_ptr<Wire> shared_wire, std::string name)
      : wire(std::move(shared_wire)), thread({std::move(name), -1}) {}

  std::shared_ptr<Wire> wire;
  std::mutex order;  // Slots are slept for in the order in which they were taken.
  Worker thread;
};

// begin(), copied() and passed() run on threads of the driver, sleep() on the timer's.
class PacedCopies::Crossing : public std::enable_shared_from_this<Crossing> {
 public:
  Crossing(std::shared_ptr<Timer> timer, std::shared_ptr<HostSignal> signal, std::size_t bytes)
      : timer_(std::move(timer)), signal_(std::move(signal)), bytes_(bytes) {}

  void begin() {
    const std::lock_guard lock(timer_->order);
    slot_ = timer_->wire->take(bytes_);
    timer_->thread.post([self = shared_from_this()] { self->sleep(); });
  }

  void copied() noexcept { copied_.store(true, std::memory_order_relaxed); }

  void passed() {
    signal_->passed();
    // The release in sleep() publishes the slot. A bus that is slower than the wire is not paid
    // back.
    if (slept_for_.load(std::memory_order_acquire)) timer_->wire->woke(slot_);
  }

 private:
  void sleep() noexcept {
    const bool slept = Wire::sleep_until_due(slot_);
    slept_for_.store(slept && copied_.load(std::memory_order_relaxed), std::memory_order_release);
    signal_->raise();
  }

  std::shared_ptr<Timer> timer_;
  std::shared_ptr<HostSignal> signal_;
  std::size_t bytes_;
  WireSchedule::Slot slot_{};
  std::atomic<bool> copied_{false};
  std::atomic<bool> slept_for_{false};
};

PacedCopies::PacedCopies(std::shared_ptr<Wire> wire, std::string timer_name)
    : timer_(std::make_shared<Timer>(std::move(wire), std::move(timer_name))) {}

void PacedCopies::copy(StreamRef stream, std::size_t bytes,
                       const std::function<void()>& enqueue_copy) {
  const std::shared_ptr<HostSignal> signal = cuda::make_signal(stream.device());
  const auto crossing = std::make_shared<Crossing>(timer_, signal, bytes);
  // Whatever throws behind begin(), the word is raised: no stream waits for ever.
  cuda::call_on_host(stream, [crossing] { crossing->begin(); });
  enqueue_copy();
  cuda::call_on_host(stream, [crossing] { crossing->copied(); });
  signal->await([stream](std::uint32_t* word) { cuda::hold_for(word, stream); });
  cuda::call_on_host(stream, [crossing] { crossing->passed(); });
}

}  // namespace sluiceway
