// The sum that a log with low-rank noise adds to its base: factors for matrices, sums for vectors.
//
//   matrix, m x n   z = U V^T [LOZO], U of (step, direction), V of the period that the step is in
//                   M <- M + c U^T              from 0 in each period, step by step, direction by
//                                               direction
//                   A = base + L^T R            L: M of every period since the base, one below the
//                                               other; R: V^T of them (kernels/low_rank.h)
//   vector          A <- A + c z                from the base, in the same order
//   theta           float(Gamma) A
//
// docs/zo_log.md has the keys of U, V and z. Everything is f32 and on the device. Nothing is
// replayed, so only bytes limit the steps on a base: 4 rank (m + n) for each period of a matrix.
//
// Invariant, which the tests name:
//   L1  Factors and sums are written only between passes: after all reads of the pass before, and
//       before anything of the next pass is perturbed.
//
// Thread safety: const calls from any thread, but not beside a non-const call.
// Lifetime:      host memory of vectors outlives this. Calls between passes wait for the streams
//                `computes`, on which factors were read since the last such call, and
//                enqueue on the last of them; the lanes must have finished the work that these wait
//                for.
// Errors:        OutOfMemory, with both byte counts: a period's factors do not fit; nothing was
//                changed. InvalidArgument: a weight or a step without factors or sums here.
// Cost:          a step draws rank x m numbers for each matrix. The first call after forget()
//                repeats all steps.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "kernels/low_rank.h"
#include "kernels/noise.h"
#include "runtime/engine/zo/scalar_log.h"
#include "runtime/engine/zo/zo_pass.h"
#include "runtime/memory/buffer.h"

namespace sluiceway {

// Larger than the number of any direction or other purpose.
inline constexpr std::uint32_t kRightFactorPurpose = ~0U;

class LowRankUpdates {
 public:
  // A weight, and the destination of its neighbours, or of theta, which goes to `plus`.
  struct Elements {
    std::span<const std::byte> base;
    std::byte *plus = nullptr, *minus = nullptr;
  };

  // `weights` are all trained weights. Vectors are in host memory; for matrices that is ignored.
  LowRankUpdates(const LogShape& shape, std::span<const StreamedWeight> weights, Budget budget,
                 DeviceId device);

  // ---- Between passes ----
  bool is_at(const ScalarLog& log) const { return made_ == log.next_step(); }
  // Adds the steps since the last call.
  void follow(const ScalarLog& log, std::span<const StreamRef> computes);
  void forget() noexcept { made_.reset(); }  // The steps may be of another line.
  // Makes room for a step, and draws V of its period.
  void prepare(std::uint64_t step, std::span<const StreamRef> computes);
  void let_go() noexcept;  // Frees all factors after a failed prepare(); follow() remakes them.

  // ---- Within passes ----
  std::size_t most_drawn_elems() const noexcept;  // Of U, for one direction of any weight.
  // Makes theta, or its neighbours along a direction of a prepared step. All memory is on the
  // device; `drawn` receives U, and is free when the work on `stream` is done.
  void make(std::uint64_t tensor, const Elements& elements, const ZoUpdates& updates,
            const StepNoise* noise, std::span<float> drawn, StreamRef stream) const;
  // Same, outside of lanes and by one thread at a time; uses its own memory for U.
  void make_alone(std::uint64_t tensor, const Elements& elements, const ZoUpdates& updates,
                  const StepNoise* noise, StreamRef stream);

 private:
  struct Weight {
    bool is_matrix() const noexcept { return shape.rows > 0; }
    std::int64_t cols() const noexcept { return shape.elements / shape.rows; }

    StreamedWeight shape;
    std::uint64_t periods = 0;  // That `factors` has room for, with V drawn.
    Buffer factors;             // L for all periods, then R; for a vector, A.
  };

  std::uint64_t period_of(std::uint64_t step) const noexcept;  // From the base's period on.
  MatrixView<float> left(const Weight& weight, std::uint64_t period, std::uint64_t count) const;
  MatrixView<float> right(const Weight& weight, std::uint64_t period, std::uint64_t count) const;
  const Weight& at(std::uint64_t tensor) const;
  void make_matrix(const Weight& weight, std::uint64_t tensor, const Elements& elements,
                   float gamma, const StepNoise* noise, std::span<float> drawn,
                   StreamRef stream) const;

  void begin_anew(StreamRef compute);
  void take_base(Weight& vector, StreamRef compute);
  void make_room(std::uint64_t periods, std::span<const StreamRef> computes);
  void grow(Weight& matrix, std::uint64_t tensor, std::uint64_t periods, StreamRef compute);
  void add(Weight& weight, std::uint64_t tensor, const Replay& replay, StreamRef compute);

  LogShape shape_;
  NoiseFamily family_;
  std::uint64_t base_step_ = 0;
  Budget budget_;
  DeviceId device_;
  std::map<std::uint64_t, Weight> weights_;  // By stable_hash() of the name.
  std::uint64_t periods_ = 0;                // Periods with updates.
  std::optional<std::uint64_t> made_;        // Earlier steps are included.
  Buffer drawn_;                             // For make_alone(),
  std::optional<StreamRef> drawn_on_;        // which used this stream last.
};

}  // namespace sluiceway
