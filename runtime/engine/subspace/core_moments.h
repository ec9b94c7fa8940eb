// The AdamW state of one core: both moments, a spare copy of them, and the number of updates.
//
//   m    core              f32   host, or device with CoreTier::kDevice
//   v    core, or dm + dn  f32   same tiers: whole, or the means of rows and columns
//   D <- m_hat / (sqrt(v_hat) + eps)      the direction; lr and decay are applied to the weight
//
// One copy is live. A speculative update reads it and writes the spare, which commit() makes live.
//
// Thread safety: advance() on the lane that has the payload; everything else while no lane has it.
// Numerics:      as in kernels/adam.h and kernels/factored_adam.h.
// Errors:        OutOfMemory, naming the purpose; nothing was changed.
#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <vector>

#include "compress/gradient_codec.h"
#include "kernels/adam.h"
#include "runtime/engine/subspace/weight_plan.h"
#include "runtime/memory/buffer.h"

namespace sluiceway {

class CoreMoments {
 public:
  CoreMoments(const WeightSpec& spec, const CoreShape& core, DeviceId device, Budget& budget);

  // Reads moments `from`; writes moments `to` (in place if equal) and the direction `d` of scale *
  // g. `d` may be `g`.
  template <typename T>
  void advance(int from, int to, const AdamHyper& hyper, float scale, std::span<T> g,
               std::span<T> d, StreamRef stream);

  int live() const noexcept { return live_; }
  int spare() const noexcept { return 1 - live_; }
  std::int64_t steps() const noexcept { return steps_; }  // Committed updates.
  void commit(int written) noexcept;                      // Makes copy `written` the live one.

  Moments copy(int which) const noexcept;
  // m and v of copy(which), one array each, whole or factored.
  std::span<float> first(int which) const noexcept;
  std::span<float> second(int which) const noexcept;
  // Returns whether the moments are in memory that the host cannot access.
  bool on_device() const noexcept { return on_device_; }
  bool has_spare() const noexcept;
  void add_spare(Budget& budget, std::string_view weight_name);
  void set_steps(std::int64_t steps) noexcept { steps_ = steps; }

  // Calls `change` with copy(which) in host memory, to be changed there. On a CUDA device that is a
  // temporary copy, which no budget counts. No kernel may use the moments meanwhile.
  template <class Change>
  void edit(int which, const Change& change) {
    if (!on_device_) return change(copy(which));
    HostCopy here(*this, which);
    change(here.view());
    here.store();
  }

 private:
  class HostCopy {
   public:
    HostCopy(CoreMoments& of, int which);
    Moments view() noexcept { return of_.view_of(m_, v_); }
    void store();

   private:
    CoreMoments& of_;
    int which_;
    std::vector<float> m_, v_;
  };

  Moments view_of(std::span<float> m, std::span<float> v) const noexcept;
  bool is_factored() const noexcept { return roots_.size() != 0; }

  CoreShape core_;
  DeviceId device_;
  bool on_device_;  // In the memory of a CUDA device.
  std::array<Buffer, 2> m_, v_;
  Buffer roots_;  // Only for a factored v.
  int live_ = 0;
  std::int64_t steps_ = 0;
};

}  // namespace sluiceway
