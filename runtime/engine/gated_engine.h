// What the engines with a step gate share: how they end, their steps, times, trace and budget.
//
// Thread safety: one thread at a time calls.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>

#include "kernels/overflow_scan.h"
#include "runtime/device/stream.h"
#include "runtime/engine/engine_lanes.h"
#include "runtime/engine/step_gate.h"

namespace sluiceway {

class GatedEngine {
 public:
  static constexpr std::chrono::milliseconds kCloseWaitLimit{5000};

  GatedEngine(const GatedEngine&) = delete;
  GatedEngine& operator=(const GatedEngine&) = delete;
  virtual ~GatedEngine() = default;

  virtual std::size_t size() const noexcept = 0;  // Weights, or tensors.

  // ---- A step ----
  // Scan of one gradient so far; call after the backward has ended.
  virtual ScanResult gradient_scan(int index) = 0;
  bool has_gradient() const noexcept { return gate_->has_gradient(); }
  virtual void drop() = 0;  // Forgets the gradients added.
  // Makes work enqueued from now on see the weight's last update: on `compute`, and on the stream
  // of the last step(), where the caller treats the update as done.
  virtual void acquire(int index, StreamRef compute) = 0;
  virtual void synchronize() = 0;  // Returns when every step is applied.

  // ---- End ----
  // drop(), then waits for the engine's work, but gives up a stuck lane (Executor::give_up_after):
  // Timeout.
  void close(std::chrono::milliseconds wait_limit = kCloseWaitLimit);
  // Like close(), but ignores earlier exceptions of lanes. Throws if a lane still runs; then the
  // engine and everything lent to it must stay alive until the process ends.
  void finish(std::chrono::milliseconds wait_limit = kCloseWaitLimit);
  bool idle() const { return lanes_->executor().idle(); }  // No lane has work of this engine.

  // ---- Numbers ----
  std::int64_t committed_steps() const noexcept { return gate_->committed_steps(); }
  void set_committed_steps(std::int64_t steps) { gate_->set_committed_steps(steps); }
  // Times of the last step.
  void note_device_times(double forward_s, double backward_s) {
    lanes_->note_device_times(forward_s, backward_s);
  }
  const std::shared_ptr<Trace>& trace() const noexcept { return lanes_->shared_trace(); }
  Budget& budget() noexcept { return lanes_->budget(); }
  EngineLanes::Options lanes_beside() const { return lanes_->beside(); }

 protected:
  // Both are members of the derived class, which it may construct after this.
  GatedEngine(EngineLanes& lanes, StepGate& gate) noexcept : lanes_(&lanes), gate_(&gate) {}

 private:
  virtual void end_work() = 0;          // Called by close() after drop().
  virtual void forget_gradients() = 0;  // Called by finish() when no lane runs any more.

  EngineLanes* lanes_;
  StepGate* gate_;
};

}  // namespace sluiceway
