// Turns the gradient of one weight into a small core, and a core into an update of the weight.
//
//   compress   S <- beta S + P^T G Q             core x from gradient m x n
//   apply      W <- decay W + alpha P D Q^T      in one pass over W
//   range      G^[first, last), G^ = P S Q^T     rounded, and scanned as it is written
//   project    Y P or X Q, for any rows: the factors of a core whose G is never formed
//   bias       |P P^T G Q Q^T - G|_F^2 and |G|_F^2       docs/algorithm.md sections 1 and 2
//
// One codec serves one weight and owns its projectors. Its constructor reserves their bytes on the
// device tier once: refresh() replaces projectors in place and keeps the old ones in its scratch,
// and load() overwrites them. This interface has everything that an engine needs from a family, so
// an engine never asks for the family; the families themselves are rows of codec_families.h.
//
// Thread safety: const calls from any thread; refresh() and load() only while no other call runs.
// Errors:        InvalidArgument names both shapes; nothing was changed. Unavailable for a stream
//                on a device that the operation does not support.
// Cost:          see the header of the kernel that a call uses.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "compress/host_side.h"
#include "compress/random_draw.h"
#include "compress/side.h"
#include "kernels/base/device_id.h"
#include "kernels/base/stream_ref.h"
#include "kernels/base/view.h"
#include "kernels/bias_norm.h"
#include "kernels/decompress.h"
#include "kernels/factored_moment.h"
#include "kernels/overflow_scan.h"
#include "runtime/memory/budget.h"

namespace sluiceway {

class ProjectorLearner;
struct CodecFamily;
struct CodecRequest;

struct CoreShape {
  std::int64_t rows = 0;
  std::int64_t cols = 0;
  std::int64_t elems() const noexcept { return rows * cols; }
};

// AdamW's moments of the core, f32, in host memory; the second is either whole or factored.
struct Moments {
  MatrixView<float> m;
  MatrixView<float> v;      // Empty if it is factored.
  FactoredMoment factored;  // Empty if it is not.
};

enum class MomentTransport : std::uint8_t {
  kProjected,  // M <- A M B, V <- (A o A) V (B o B), A = P_new^T P_old, B = Q_old^T Q_new.
  kKeep,
  kReset,
};
MomentTransport parse_transport(std::string_view name);  // "projected", "keep", "reset"

struct RefreshOptions {
  double threshold = 0;     // Learn until the relative bias is at most this (the paper's alpha).
  int learn_steps = 100;    // At most.
  double learn_rate = 0.1;  // Rate of the learner's Adam.
  double beta = 1e-4;       // Weight of its regulariser, beta (|P|_F + |Q|_F).
  SparseInit init = SparseInit::kSign;  // Initial values for learning.
  MomentTransport transport = MomentTransport::kProjected;
};

struct RefreshOutcome {
  bool refreshed = false;  // False if the family cannot learn or the bias was low enough.
  double bias_before = 0;  // Relative: |b(G)|_F / |G|_F.
  double bias_after = 0;
  int learn_steps = 0;  // Steps taken by sparse_learned.
  double seconds = 0;   // Time to measure and learn; part of the step that asked for the refresh.
};

class GradientCodec {
 public:
  GradientCodec(const GradientCodec&) = delete;
  GradientCodec& operator=(const GradientCodec&) = delete;
  virtual ~GradientCodec() = default;

  std::string_view name() const noexcept;
  bool learns() const noexcept;  // refresh() may change the projectors.
  virtual CoreShape core() const noexcept = 0;
  // 1/f for orthonormal columns (docs/algorithm.md section 4), 1 otherwise.
  virtual float default_scale() const noexcept { return 1.0F; }
  // True while nothing can be compressed because refresh() has not run yet.
  virtual bool wants_calibration() const noexcept { return false; }
  std::uint64_t generation() const noexcept { return generation_; }  // Refreshes so far.
  // f32 elements of scratch that most calls below need.
  virtual std::size_t scratch_elems() const noexcept { return 0; }
  // The same for refresh(); scratch_elems() are enough while wants_calibration() is true.
  std::size_t refresh_scratch_elems() const noexcept { return scratch_elems() + kept_elems(); }

  virtual void compress(const AnyMatrix& g, float beta, MatrixView<float> s,
                        std::span<float> scratch, StreamRef stream) const = 0;

  // w <- g P for Side::kRows, g Q for Side::kColumns (kernels/compress_linear.h), if projects().
  // Keeps nothing between calls, so threads may share a codec if each has a scratch of
  // project_scratch_elems().
  virtual bool projects() const noexcept { return false; }
  virtual void project(Side side, const AnyMatrix& w, const AnyMatrix& g, std::span<float> scratch,
                       StreamRef stream) const;
  virtual std::size_t project_scratch_elems() const noexcept { return 0; }  // f32.

  // `d` is f32 or bf16. `low` is empty unless update.rounding is kResidual.
  virtual void apply(const AnyMatrix& w, MatrixView<std::uint16_t> low, const AnyMatrix& d,
                     const WeightUpdate& update, std::span<float> scratch,
                     StreamRef stream) const = 0;

  // Fills `dst` with elements of P S Q^T, row-major, from `first` on. The bits do not depend on how
  // the matrix is divided. Keeps nothing between calls, so threads may share a codec if each has a
  // scratch of range_scratch_elems(). Host only; kernels/decompress_range.h has numerics and cost.
  virtual ScanResult decompress_range(const AnyMatrix& s, std::int64_t first,
                                      std::span<std::byte> dst, DType dtype,
                                      std::span<float> scratch) const = 0;
  virtual std::size_t range_scratch_elems() const noexcept { return 0; }  // f32.

  // G <- G - P S Q^T for the core `s` of `g`; `pass` receives the means of its squares and uses
  // them. A codec without a core gets a `pass` that may ask for the scan of G as well.
  virtual void leave_residual(const AnyMatrix& g, MatrixView<float> s, const MeansPass& pass,
                              std::span<float> scratch, StreamRef stream) const = 0;

  // Returns numbers, so it waits for the stream; on a CUDA device, one call at a time.
  BiasNorm bias(const AnyMatrix& g, std::span<float> scratch, StreamRef stream) const;

  // Measures the bias on calibration gradient `g`. If it exceeds options.threshold, draws new
  // positions, learns values with `learner`, replaces the projectors and transports the moments. If
  // it throws, codec and moments are as before. No other stream may read the projectors meanwhile.
  // On the host device it reserves nothing from the budget. On a CUDA device it waits for the
  // stream, and `learner` works there; for fits and moments that the host computes it reserves
  // copies on the host tier and frees them before it returns.
  RefreshOutcome refresh(const AnyMatrix& g, const RefreshOptions& options,
                         ProjectorLearner& learner, const Moments& moments,
                         std::span<float> scratch, StreamRef stream);

  // Returns what a resume needs besides the constructor's arguments; load(save()) is bit-identical.
  virtual std::vector<std::byte> save() const = 0;
  // Throws Corrupt for a wrong size or header, which check() finds before anything is changed.
  virtual void load(std::span<const std::byte> state) = 0;
  virtual void check(std::span<const std::byte> state) const = 0;

 protected:
  // Needs the family alone: for a codec that measures on the host device only.
  explicit GradientCodec(const CodecFamily& family) noexcept : family_(family) {}
  explicit GradientCodec(const CodecRequest& request);

  virtual BiasNorm measure_bias(const AnyMatrix& g, std::span<float> scratch,
                                StreamRef stream) const = 0;

  // ---- For families that learn ----
  // f32 elements that hold a copy of P and Q.
  virtual std::size_t kept_elems() const noexcept { return 0; }
  virtual void keep(std::span<float> /*copy*/) const {}
  // Empty: there were no projectors yet; fills them with zeros.
  virtual void restore(std::span<const float> /*copy*/) {}
  // Overwrites P and Q with the projectors of generation() + 1, fitted to `g`; returns the
  // learner's steps.
  virtual int fit(const AnyMatrix& g, const RefreshOptions& options, ProjectorLearner& learner,
                  StreamRef stream);
  virtual void transport(MomentTransport /*how*/, const Moments& /*moments*/,
                         std::span<const float> /*copy*/) const {}

  const CodecFamily& family() const noexcept { return family_; }
  const ResultSlot& result() const noexcept { return result_; }
  void set_generation(std::uint64_t generation) noexcept { generation_ = generation; }

 private:
  bool replace(const AnyMatrix& g, const RefreshOptions& options, ProjectorLearner& learner,
               const Moments& moments, std::span<float> scratch, std::span<float> copy,
               StreamRef stream, RefreshOutcome& outcome);

  double lost_without_projectors(const AnyMatrix& g, StreamRef stream) const;

  const CodecFamily& family_;
  const ResultSlot result_;
  std::uint64_t generation_ = 0;
};

struct CodecConfig {
  std::string name = "auto";
  double ratio = 0.25;      // f: P is m x round(f m), Q is n x round(f n); for blocks, per group.
  std::int64_t d = 0;       // The paper's square core, if > 0; `ratio` is then not used.
  std::int64_t nnz = 4;     // r, for the sparse families.
  std::int64_t block = 32;  // Rows per group, for the block families.
  std::uint64_t seed = 0;
  // Weights with equal columns and equal q_hash share the values of Q; 0: a Q of their own.
  // Families that learn ignore it, since their Q follows from the gradient.
  std::uint64_t q_hash = 0;
};

// Returns |b(G)|_F / |G|_F: 0 for a gradient of zeros, NaN for one that is not finite.
double relative_bias(const BiasNorm& norm) noexcept;

// Returns the family that "auto" means if the budget is unknown; otherwise `name` itself.
// InvalidArgument lists all names that exist.
std::string resolve_codec(std::string_view name);

// `weight_hash` is the stable hash of the weight's name. It keys the random draws, which are the
// same on every device. `device` is the weight's. `budget` outlives the codec.
std::unique_ptr<GradientCodec> make_codec(const CodecConfig& config, std::int64_t m, std::int64_t n,
                                          std::uint64_t weight_hash, DeviceId device,
                                          Budget& budget);

// For `plan`, without allocating anything: the shape of the core that make_codec() would make, the
// device bytes of its projectors, scratch_elems(), refresh_scratch_elems(), range_scratch_elems(),
// project_scratch_elems(), and the device bytes that torch uses while projectors are fitted.
CoreShape core_shape(const CodecConfig& config, std::int64_t m, std::int64_t n);
std::uint64_t projector_bytes(const CodecConfig& config, std::int64_t m, std::int64_t n);
std::size_t codec_scratch_elems(const CodecConfig& config, std::int64_t m, std::int64_t n);
std::size_t refresh_scratch_elems(const CodecConfig& config, std::int64_t m, std::int64_t n);
std::size_t range_scratch_elems(const CodecConfig& config, std::int64_t m, std::int64_t n);
std::size_t project_scratch_elems(const CodecConfig& config, std::int64_t m, std::int64_t n);
std::uint64_t fit_bytes(const CodecConfig& config, std::int64_t m, std::int64_t n);

}  // namespace sluiceway
