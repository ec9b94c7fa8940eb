// Work that a stream runs in its order, and what holds a stream: the same on every device.
#pragma once

#include <chrono>
#include <functional>
#include <future>
#include <string>
#include <thread>
#include <utility>

#include "runtime/device/cuda_backend.h"
#include "runtime/device/stream.h"

namespace sluiceway::test {

// A task whose `work` runs where that of the stream does: on the host's worker, or between what a
// CUDA stream does before and what it does later, on a thread of the driver. There it must neither
// call CUDA nor wait for another stream, since the driver may have one such thread for all.
inline Stream::Task task_of(std::function<void()> work) {
  return [work = std::move(work)](StreamRef stream) {
    if (stream.is_host()) return work();
    cuda::call_on_host(stream, work);
  };
}

inline void sleep_ms(int ms) { std::this_thread::sleep_for(std::chrono::milliseconds(ms)); }

// Holds streams until open() is called, or its life ends: before that of the streams, which else
// would wait for ever where a test fails.
class Gate {
 public:
  Gate() {
    host_.enqueue([this](StreamRef) { opened_.get_future().wait(); });
    event_ = host_.record();
  }
  Gate(const Gate&) = delete;
  Gate& operator=(const Gate&) = delete;
  ~Gate() {
    if (!is_open_) open();
  }
  void hold(Stream& stream) { stream.wait(event_); }
  const Event& event() const { return event_; }  // It is open.
  void open() {
    is_open_ = true;
    opened_.set_value();
  }

 private:
  bool is_open_ = false;
  std::promise<void> opened_;
  Stream host_ = Stream::host({"gate"});
  Event event_;
};

}  // namespace sluiceway::test
