// One kind of stream behind Stream's interface, with the guarantees of stream.h.
#pragma once

#include <memory>

#include "runtime/device/stream.h"

namespace sluiceway {

class StreamBackend {
 public:
  StreamBackend() = default;
  StreamBackend(const StreamBackend&) = delete;
  StreamBackend& operator=(const StreamBackend&) = delete;
  virtual ~StreamBackend() = default;

  virtual void enqueue(Stream::Task task, Stream::Done done) = 0;  // `done` may be empty.
  virtual void wait(const Event& event) = 0;
  virtual Event record() = 0;
  virtual void synchronize() = 0;
  virtual DeviceId device() const noexcept = 0;

  // True if the device itself waits for events of its own streams in wait(), and no thread does.
  virtual bool waits_on_device() const noexcept { return false; }
};

}  // namespace sluiceway
