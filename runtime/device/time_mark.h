// A mark that a CUDA stream passes, and the time between two marks on the device's clock.
//
// Unlike an Event (event.h), it measures time, threads do not wait for it, and it can be recorded
// many times: keep a pool if you need many. Reading a mark never waits.
//
// Thread safety: one thread at a time records a mark, and none while another reads it.
// Lifetime:      may be destroyed at any time, even before a stream has passed it.
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

  // `stream`, on the mark's device, passes the mark after all work given to it so far; this
  // replaces an earlier recording. Throws CudaError if the device has failed.
  virtual void record(StreamRef stream) = 0;

  // Seconds from passing `earlier` to passing this mark, negative if this one came first; accurate
  // to about a microsecond. Returns nothing until both are passed, and 0 once the device has
  // failed.
  virtual std::optional<double> seconds_since(const TimeMark& earlier) const = 0;
};

// Makes a mark for a CUDA device, without giving it work. Throws Unavailable in a build without
// CUDA.
std::unique_ptr<TimeMark> make_time_mark(DeviceId device);

}  // namespace sluiceway
