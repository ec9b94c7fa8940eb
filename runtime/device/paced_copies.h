// Copies of device streams that take the time of a wire, so that a fast bus can pose as a slow one.
//
//   the stream   begin    copy   copied   hold   passed
//   the timer             sleeps until the copy is due, raises the word of the hold
//
//   begin    when the stream gets there: the copy takes its slot of the wire
//   copied   the bus has moved it
//   hold     the stream waits for a word of the host, on the device (signal_word.h)
//   passed   the wire learns how late the stream went on
//
// The first, third and last are functions that the stream calls on the host: short, and without a
// call of CUDA. The timer makes none either, so a thread that waits for the whole device (cudaFree)
// cannot keep it from raising its word.
//
// Thread safety: copy() from any thread.
// Lifetime:      what is on the way outlives this object.
// Errors:        what the device layer throws; Unavailable: the driver cannot let a stream wait.
#pragma once

#include <cstddef>
#include <functional>
#include <memory>
#include <string>

#include "kernels/base/stream_ref.h"
#include "runtime/device/wire.h"

namespace sluiceway {

class PacedCopies {
 public:
  // `timer_name` names the thread that sleeps.
  PacedCopies(std::shared_ptr<Wire> wire, std::string timer_name);

  // Enqueues what `enqueue_copy` does on `stream`, paced as a copy of `bytes`. To be called from a
  // task of that stream.
  void copy(StreamRef stream, std::size_t bytes, const std::function<void()>& enqueue_copy);

 private:
  struct Timer;
  class Crossing;
  std::shared_ptr<Timer> timer_;  // Copies on their way hold it too.
};

}  // namespace sluiceway
