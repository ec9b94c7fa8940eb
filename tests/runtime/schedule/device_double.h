// A simulated device: tasks launch at once, and the launched work runs later, in order.
//
// As on CUDA, enqueue() calls the task on the caller's thread; the work that it launches through
// its StreamRef runs on the stream's own thread. A second thread reports completions, so the device
// continues with work that waits for an event before any host thread knows of it.
#pragma once

#include <atomic>
#include <exception>
#include <functional>
#include <memory>
#include <string>
#include <utility>

#include "kernels/base/error.h"
#include "runtime/device/event_state.h"
#include "runtime/device/stream_backend.h"
#include "runtime/device/worker.h"
#include "runtime/trace/trace.h"

namespace sluiceway::test {

class DeviceDouble final : public StreamBackend {
 public:
  struct Faults {
    bool record = false;  // record() throws,
    bool wait = false;    // and so does wait().
  };
  explicit DeviceDouble(int ordinal) : DeviceDouble(ordinal, Faults()) {}
  DeviceDouble(int ordinal, Faults faults)
      : ordinal_(ordinal), faults_(faults), watcher_({"watcher"}), device_({"device"}) {}

  static Stream stream(int ordinal, Faults faults = {false, false}) {
    return Stream::over(std::make_unique<DeviceDouble>(ordinal, faults));
  }

  // Launches work on the stream that a task receives.
  static void launch(StreamRef stream, std::function<void()> work) {
    static_cast<DeviceDouble*>(stream.native())->device_.post(std::move(work));
  }

  void enqueue(Stream::Task task, Stream::Done done) override {
    const auto completion = std::make_shared<Completion>();
    device_.post([completion] { completion->begin_us = now_us(); });
    try {
      task(StreamRef::cuda(ordinal_, this));
    } catch (...) {
      completion->error = std::current_exception();
    }
    device_.post([this, completion, task = std::move(task), done = std::move(done)] {
      completion->end_us = now_us();
      watcher_.post([completion, task, done]() mutable {
        task = nullptr;
        if (done) done(*completion);
      });
    });
  }

  void wait(const Event& event) override {
    if (faults_.wait) throw CudaError("wait: refused, error 9");
    device_.post([event] { event.wait(); });
  }

  Event record() override {
    if (faults_.record) throw CudaError("record: refused, error 9");
    auto state = std::make_shared<HostEvent>();
    device_.post([state] { state->set(); });
    return Event(std::move(state));
  }

  void synchronize() override { record().wait(); }
  DeviceId device() const noexcept override { return DeviceId::cuda(ordinal_); }
  bool waits_on_device() const noexcept override { return true; }

 private:
  int ordinal_;
  Faults faults_;
  Worker watcher_;  // Before the device's thread, which posts to it to the end.
  Worker device_;
};

// A device so fast that all work is done and reported before enqueue() returns.
class InstantDevice final : public StreamBackend {
 public:
  void enqueue(Stream::Task task, Stream::Done done) override {
    Completion completion;
    completion.begin_us = completion.end_us = now_us();
    task(StreamRef::cuda(0, nullptr));
    task = nullptr;
    done(completion);
  }
  void wait(const Event& event) override { event.wait(); }
  Event record() override { return {}; }
  void synchronize() override {}
  DeviceId device() const noexcept override { return DeviceId::cuda(0); }
  bool waits_on_device() const noexcept override { return true; }
};

}  // namespace sluiceway::test
