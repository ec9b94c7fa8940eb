// Work that a stream runs in order, and a way to hold a stream: the same on every device.
#pragma once

#include <chrono>
#include <functional>
#include <future>
#include <optional>
#include <string>
#include <thread>
#include <utility>

#include "runtime/device/stream.h"
#include "tests/support/stream_hold.h"

namespace sluiceway::test {

// A task whose `work` runs in the stream: on the host's worker, or between earlier and later work
// of a CUDA stream (call_in_stream()).
inline Stream::Task task_of(std::function<void()> work) {
  return [work = std::move(work)](StreamRef stream) {
    if (stream.is_host()) return work();
    call_in_stream(stream, work);
  };
}

inline void sleep_ms(int ms) { std::this_thread::sleep_for(std::chrono::milliseconds(ms)); }

// Holds streams until open() or its destruction. Destroy it before the streams, which would
// otherwise wait forever if a test fails. `device`: the streams' device, if not the host.
class Gate {
 public:
  explicit Gate(DeviceId device = DeviceId::host()) {
    if (!device.is_host()) word_.emplace(device);
    host_.enqueue([this](StreamRef) { opened_.get_future().wait(); });
    event_ = host_.record();
  }
  Gate(const Gate&) = delete;
  Gate& operator=(const Gate&) = delete;
  ~Gate() {
    if (!is_open_) open();
  }
  void hold(Stream& stream) {
    if (stream.device().is_host()) return stream.wait(event_);
    stream.enqueue([this](StreamRef ref) { hold(ref); });
  }
  void hold(StreamRef stream) const { word_.value().hold(stream); }  // For a device's stream.
  const Event& event() const { return event_; }  // The gate is open; an event of the host.
  void open() {
    is_open_ = true;
    opened_.set_value();
    if (word_) word_->raise();
  }

 private:
  bool is_open_ = false;
  std::optional<HoldWord> word_;
  std::promise<void> opened_;
  Stream host_ = Stream::host({"gate"});
  Event event_;
};

}  // namespace sluiceway::test
