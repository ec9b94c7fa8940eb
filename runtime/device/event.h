// A point in a stream's work that others can wait for.
//
// An Event is a shared handle: copies name the same point. A default-constructed Event has
// already happened.
//
// Thread safety: any thread may query or wait; the state is published with release order under the
//                event's own mutex (host) or by the CUDA runtime (cuda).
// Lifetime:      may outlive its stream; a destroyed stream completes its events first.
#pragma once

#include <memory>

namespace sluiceway {

class Event {
 public:
  struct State;  // event_state.h: its host and CUDA forms.

  Event() noexcept = default;
  explicit Event(std::shared_ptr<State> state) noexcept : state_(std::move(state)) {}

  bool happened() const;
  void wait() const;  // Blocks the calling thread without spinning.

  const std::shared_ptr<State>& state() const noexcept { return state_; }

 private:
  std::shared_ptr<State> state_;
};

}  // namespace sluiceway
