// Turns the gradient of one weight into a small core and a core into an update of the weight.
//
//   compress   S <- beta S + P^T G Q             core x from gradient m x n
//   apply      W <- decay W + alpha P D Q^T      in one pass over W
//   range      G^[first, last), G^ = P S Q^T     rounded, and scanned as written
//   project    Y P or X Q, of any number of rows: a core's two sides, where G is never formed
//   bias       |P P^T G Q Q^T - G|_F^2 and |G|_F^2       docs/algorithm.md sections 1 and 2
//
// One codec serves one weight and owns its projectors; their bytes are reserved on the device tier
// once, in the constructor: a refresh replaces them in place and keeps the old ones in its scratch,
// and load() overwrites them. Everything an engine needs of a family is here, so that an engine
// never asks which family it is; the families themselves are rows of codec_families.h.
//
// Thread safety: const calls from any thread; refresh() and load() while no other call runs.
// Errors:        InvalidArgument names both shapes; nothing was changed. Unavailable: a stream for
//                whose device an operation has no half.
// Cost:          the header of the kernel that a call ends in.
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

// Both moments of AdamW on the core, f32, in host memory; the second either whole or factored.
struct Moments {
  MatrixView<float> m;
  MatrixView<float> v;      // Empty where it is factored.
  FactoredMoment factored;  // Empty where it is not.
};

enum class MomentTransport : std::uint8_t {
  kProjected,  // M <- A M B, V <- (A o A) V (B o B), A = P_new^T P_old, B = Q_old^T Q_new.
  kKeep,
  kReset,
};
MomentTransport parse_transport(std::string_view name);  // "projected", "keep", "reset"

struct RefreshOptions {
  double threshold = 0;     // Learn until the relative bias is at most this (alpha of the paper).
  int learn_steps = 100;    // At most.
  double learn_rate = 0.1;  // Of the learner's Adam.
  double beta = 1e-4;       // Its regulariser: beta (|P|_F + |Q|_F).
  SparseInit init = SparseInit::kSign;  // What learning starts from.
  MomentTransport transport = MomentTransport::kProjected;
};

struct RefreshOutcome {
  bool refreshed = false;  // False: this family has nothing to learn, or the bias was low enough.
  double bias_before = 0;  // Relative: |b(G)|_F / |G|_F.
  double bias_after = 0;
  int learn_steps = 0;  // Of sparse_learned.
  double seconds = 0;   // Measuring and learning; part of the step that asked for it.
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
  // Nothing can be compressed before a first refresh().
  virtual bool wants_calibration() const noexcept { return false; }
  std::uint64_t generation() const noexcept { return generation_; }  // Refreshes so far.
  virtual std::size_t scratch_elems() const noexcept { return 0; }   // f32; of most calls below.
  // f32 elements that refresh() needs; scratch_elems() suffice while wants_calibration().
  std::size_t refresh_scratch_elems() const noexcept { return scratch_elems() + kept_elems(); }

  virtual void compress(const AnyMatrix& g, float beta, MatrixView<float> s,
                        std::span<float> scratch, StreamRef stream) const = 0;

  // w <- g P for Side::kRows, g Q for Side::kColumns (kernels/compress_linear.h), of a codec that
  // projects(); keeps nothing between calls, so threads may share a codec, each with a scratch of
  // project_scratch_elems().
  virtual bool projects() const noexcept { return false; }
  virtual void project(Side side, const AnyMatrix& w, const AnyMatrix& g, std::span<float> scratch,
                       StreamRef stream) const;
  virtual std::size_t project_scratch_elems() const noexcept { return 0; }  // f32.

  // `d` is f32 or bf16. `low` is empty unless update.rounding is kResidual.
  virtual void apply(const AnyMatrix& w, MatrixView<std::uint16_t> low, const AnyMatrix& d,
                     const WeightUpdate& update, std::span<float> scratch,
                     StreamRef stream) const = 0;

  // Elements of P S Q^T, row-major, from `first` on, into all of `dst`: whatever the cut, the bits
  // are the same. Keeps nothing between calls, so threads may share a codec, each with a scratch of
  // range_scratch_elems(). On the host alone; kernels/decompress_range.h has numerics and cost.
  virtual ScanResult decompress_range(const AnyMatrix& s, std::int64_t first,
                                      std::span<std::byte> dst, DType dtype,
                                      std::span<float> scratch) const = 0;
  virtual std::size_t range_scratch_elems() const noexcept { return 0; }  // f32.

  // G <- G - P S Q^T for the core `s` of `g`; `pass` gets the means of its squares and uses them.
  // A codec without a core gets a `pass` that may ask for the scan of G as well.
  virtual void leave_residual(const AnyMatrix& g, MatrixView<float> s, const MeansPass& pass,
                              std::span<float> scratch, StreamRef stream) const = 0;

  // Returns numbers, so it waits for the stream; one call at a time on a CUDA device.
  BiasNorm bias(const AnyMatrix& g, std::span<float> scratch, StreamRef stream) const;

  // Measures the bias on calibration gradient `g`; where it exceeds options.threshold, draws new
  // positions, learns values with `learner`, replaces the projectors and carries the moments over.
  // Whatever throws: codec and moments are as before. No other stream reads the projectors
  // meanwhile. On the host device it allocates nothing of the budget. On a CUDA device it waits for
  // the stream and `learner` works there; what the host fits or carries over is in copies, which
  // it reserves on the host tier and gives back before it returns.
  RefreshOutcome refresh(const AnyMatrix& g, const RefreshOptions& options,
                         ProjectorLearner& learner, const Moments& moments,
                         std::span<float> scratch, StreamRef stream);

  // What a resume needs beyond the constructor's arguments; load(save()) is bit-identical.
  virtual std::vector<std::byte> save() const = 0;
  // Corrupt: wrong size or header; check() finds it and changes nothing.
  virtual void load(std::span<const std::byte> state) = 0;
  virtual void check(std::span<const std::byte> state) const = 0;

 protected:
  // With the family alone: a codec that measures on the host device only.
  explicit GradientCodec(const CodecFamily& family) noexcept : family_(family) {}
  explicit GradientCodec(const CodecRequest& request);

  virtual BiasNorm measure_bias(const AnyMatrix& g, std::span<float> scratch,
                                StreamRef stream) const = 0;

  // ---- Of families that learn ----
  // f32 elements that hold a copy of P and Q.
  virtual std::size_t kept_elems() const noexcept { return 0; }
  virtual void keep(std::span<float> /*copy*/) const {}
  virtual void restore(std::span<const float> /*copy*/) {}  // Empty: there were none yet, zeros.
  // Overwrites P and Q with those of generation() + 1, fitted to `g`; returns the learner's steps.
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
  double ratio = 0.25;      // f: P is m x round(f m), Q is n x round(f n), by groups for blocks.
  std::int64_t d = 0;       // Square core of the paper, where > 0; `ratio` is then not used.
  std::int64_t nnz = 4;     // r of the sparse families.
  std::int64_t block = 32;  // Rows per group of the block families.
  std::uint64_t seed = 0;
  // Weights of equal columns that have the same one here have the same Q, 0: a Q of their own.
  // Families that learn, whose Q follows from the gradient, take no notice.
  std::uint64_t q_hash = 0;
};

// |b(G)|_F / |G|_F; 0 for a gradient of zeros, NaN for one that is not finite.
double relative_bias(const BiasNorm& norm) noexcept;

// The family that "auto" stands for where nothing is known of a budget; otherwise `name` itself.
// InvalidArgument lists all names that exist.
std::string resolve_codec(std::string_view name);

// `weight_hash` is the stable hash of the weight's name: it keys the random draws, which are the
// same on every device. `device` is the weight's. `budget` outlives the codec.
std::unique_ptr<GradientCodec> make_codec(const CodecConfig& config, std::int64_t m, std::int64_t n,
                                          std::uint64_t weight_hash, DeviceId device,
                                          Budget& budget);

// The shape that make_codec() would give its core, the device bytes of its projectors,
// scratch_elems(), refresh_scratch_elems(), range_scratch_elems(), project_scratch_elems(), and the
// device bytes that are torch's while projectors are fitted, without allocating anything: for
// `plan`.
CoreShape core_shape(const CodecConfig& config, std::int64_t m, std::int64_t n);
std::uint64_t projector_bytes(const CodecConfig& config, std::int64_t m, std::int64_t n);
std::size_t codec_scratch_elems(const CodecConfig& config, std::int64_t m, std::int64_t n);
std::size_t refresh_scratch_elems(const CodecConfig& config, std::int64_t m, std::int64_t n);
std::size_t range_scratch_elems(const CodecConfig& config, std::int64_t m, std::int64_t n);
std::size_t project_scratch_elems(const CodecConfig& config, std::int64_t m, std::int64_t n);
std::uint64_t fit_bytes(const CodecConfig& config, std::int64_t m, std::int64_t n);

}  // namespace sluiceway
