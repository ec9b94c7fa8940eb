// A mark that a CUDA stream passes, and the time between two of them as the device has it.
//
// Unlike an Event (event.h), which nobody waits for by the clock, it can be recorded again and
// again: whoever takes many of them keeps a pool. Reading a mark never waits.
//
// Thread safety: one thread at a time records a mark, and none while another reads it.
// Lifetime:      goes at any time, also before a stream has passed it.
#pragma once

#include <memory>
#include <optional>

#include "kernels/base/device_id.h"
#include "kernels/base/stream_ref.h"

namespace sluiceway {

class TimeMark {
 public:
  TimeMark() = default;
  TimeMark(const TimeMark&) = delete;
  TimeMark& operator=(const TimeMark&) = delete;
  virtual ~TimeMark() = default;

  // `stream`, of the mark's device, passes it when it is done with what it has been given so far;
  // an earlier recording is forgotten. CudaError: the device has failed.
  virtual void record(StreamRef stream) = 0;

  // From when `earlier` was passed until this one was, below 0 where this one was first; to about a
  // microsecond. Nothing while one of the two has not been passed; 0 once the device has failed.
  virtual std::optional<double> seconds_since(const TimeMark& earlier) const = 0;
};

// Of a CUDA device, without work for it. Unavailable: this build has no CUDA.
std::unique_ptr<TimeMark> make_time_mark(DeviceId device);

}  // namespace sluiceway
