// Lets a test do to a stream of a CUDA device what the product never does (stream.h, D1): hold it
// until the host releases it, and call a host function in it.
//
// A test that holds a device has loaded and allocated everything it uses meanwhile: in those calls
// the driver may wait for an idle device.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>

#include "kernels/base/stream_ref.h"

namespace sluiceway::test {

// A word that streams of the device wait for. It lives until the process ends.
class HoldWord {
 public:
  explicit HoldWord(DeviceId device);
  void hold(StreamRef stream) const;  // Later work on the stream waits until raise().
  void raise() const noexcept;

 private:
  std::uint32_t* word_ = nullptr;
};

// Calls `function` on a thread of the driver, between earlier and later work of `stream`. It must
// neither call CUDA nor wait for another stream, since the driver may have a single such thread.
void call_in_stream(StreamRef stream, std::function<void()> function);

}  // namespace sluiceway::test
