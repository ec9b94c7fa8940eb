// Streams beside a model's stream, as a framework has them: each starts after the earlier work of
// the model's stream, which then goes on after all of them.
#pragma once

#include <algorithm>
#include <cstddef>
#include <utility>
#include <vector>

#include "kernels/base/stream_ref.h"
#include "runtime/device/stream.h"

namespace sluiceway::test {

class SideStreams {
 public:
  // `count` streams; none on the host device, which has one.
  SideStreams(StreamRef model, int count) : model_(Stream::borrowed(model)), refs_{model} {
    if (model.is_host()) return;
    for (int i = 0; i < count; ++i) {
      sides_.push_back(Stream::owned(model.device(), {"sw-side"}));
      sides_.back().enqueue([this](StreamRef ref) { refs_.push_back(ref); });
    }
  }

  // Returns the model's own stream for turn 0, then each of the others, and so on.
  StreamRef at(int turn) const { return refs_[static_cast<std::size_t>(turn) % refs_.size()]; }

  std::size_t size() const noexcept { return refs_.size(); }
  std::size_t number_of(StreamRef stream) const {
    return static_cast<std::size_t>(std::ranges::find(refs_, stream) - refs_.begin());
  }

  void fork() {
    for (Stream& side : sides_) side.wait(model_.record());
  }
  void join() {
    for (Stream& side : sides_) model_.wait(side.record());
  }

 private:
  Stream model_;
  std::vector<StreamRef> refs_;
  std::vector<Stream> sides_;
};

}  // namespace sluiceway::test
