#include "runtime/engine/computing_stream.h"

#include "kernels/base/check.h"

namespace sluiceway {

ComputingStream::ComputingStream(EngineLanes& lanes) noexcept
    : lanes_(lanes),
      ref_(lanes.device().is_host() ? StreamRef::host()
                                    : StreamRef::cuda(lanes.device().ordinal(), nullptr)) {}

void ComputingStream::move_to(StreamRef compute) {
  SLUICEWAY_CHECK(compute.device() == lanes_.device(), "engine: the stream is on ",
                  to_string(compute.device()), ", expected a stream of ",
                  to_string(lanes_.device()), ", the device of the engine");
  if (was_used_ && compute != ref_) {
    const Event before = lanes_.compute(ref_).record();
    lanes_.compute(compute).wait(before);
  }
  ref_ = compute;
  was_used_ = true;
}

void ComputingStream::move_to_step(const std::optional<StreamRef>& compute) {
  if (compute) move_to(*compute);
  const std::lock_guard lock(mutex_);
  stepped_ = ref_;
}

void ComputingStream::acquire(int key, StreamRef compute) {
  lanes_.acquire(key, compute);
  std::optional<StreamRef> stepped;
  {
    const std::lock_guard lock(mutex_);
    stepped = stepped_;
  }
  if (!stepped || *stepped == compute) return;
  lanes_.executor().acquire(key, lanes_.compute(*stepped));
  lanes_.compute(compute);  // Starts timing the waits on this stream.
}

Event ComputingStream::reached() {
  return ref_.is_host() ? Event() : lanes_.compute(ref_).record();
}

void prepare_own_stream(Stream& own) {
  if (own.device().is_host()) return;
  own.enqueue([](StreamRef stream) { cuda::prepare_stream(stream); });
  own.synchronize();
}

}  // namespace sluiceway
