#include "runtime/engine/computing_stream.h"

#include "kernels/base/check.h"

namespace sluiceway {

ComputingStream::ComputingStream(EngineLanes& lanes) noexcept
    : lanes_(lanes),
      ref_(lanes.device().is_host() ? StreamRef::host()
                                    : StreamRef::cuda(lanes.device().ordinal(), nullptr)) {}

void ComputingStream::move_to(StreamRef compute) {
  SLUICEWAY_CHECK(compute.device() == lanes_.device(), "engine: work on a stream of ",
                  to_string(compute.device()), ", expected one of ", to_string(lanes_.device()),
                  ", which the engine was made for");
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
  lanes_.compute(compute);  // The stream that waits of this thread are timed on.
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
