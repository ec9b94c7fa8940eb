// What a test may do to a stream of a CUDA device, and the product never does (stream.h, D1): hold
// it until the host says so, and call a function of the host in it.
//
// A test that holds a device has loaded and allocated beforehand what it uses meanwhile: the driver
// may wait for an idle device in those calls.
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
  void hold(StreamRef stream) const;  // What it is given from now on waits until raise().
  void raise() const noexcept;

 private:
  std::uint32_t* word_ = nullptr;
};

// On a thread of the driver, between what `stream` does before and what it does later. There it
// must neither call CUDA nor wait for another stream, since the driver may have one such thread for
// all.
void call_in_stream(StreamRef stream, std::function<void()> function);

}  // namespace sluiceway::test
