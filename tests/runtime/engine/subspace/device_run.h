// Runs twenty steps of the subspace engine on any device, with three weights of odd shapes
// (device_model.h).
#pragma once

#include <cmath>
#include <cstdint>
#include <limits>
#include <memory>
#include <ostream>
#include <string>
#include <utility>
#include <vector>

#include "kernels/compress.h"
#include "runtime/engine/subspace/subspace_engine.h"
#include "runtime/memory/buffer.h"
#include "tests/compress/exact_learner.h"
#include "tests/compress/learner_on_copies.h"
#include "tests/support/device_model.h"
#include "tests/support/side_streams.h"

namespace sluiceway::test {

inline const WeightHyper kRunHyper{1e-2, 0.9, 0.99, 1e-8, 0.1, 0};

struct RunCase {
  std::string name;
  std::string codec;
  WireFormat wire = WireFormat::kF32;
  CoreTier tier = CoreTier::kHost;
  SecondMoment second = SecondMoment::kFull;
  Rounding rounding = Rounding::kNearest;  // kNearest: f32 weights, else bf16.
  ResidualKind residual = ResidualKind::kNone;
  NormChoice norm = NormChoice::kExact;
  int micro_batches = 1;
  bool at_once = false;
  double max_norm = 0;
  int refresh_every = 0;
  Order order = Order::kEdf;
  bool as_core = false;  // Gradients come as cores, as from fused layers.
  LinkCopy::Config h2d = {};
  bool reloads = true;   // Continues in another engine midway.
  int side_streams = 0;  // Gradients come in turn on this many streams and that of the model.
  int host_threads = 1;

  friend void PrintTo(const RunCase& run, std::ostream* out) { *out << run.name; }
};

// Returns singular directions, and for sparse projectors values that depend on the gradient.
class TestLearner final : public ProjectorLearner {
 public:
  LearnOutcome learn(const AnyMatrix& g, const LearnableRows& p, const LearnableRows& q,
                     const LearnOptions& options, StreamRef /*stream*/) override {
    const float factor = g.as<float>().row(0)[0] > 0 ? 0.75F : 0.8F;
    for (float& x : p.value) x *= factor;
    for (float& x : q.value) x *= factor;
    return {.steps = options.max_steps};
  }
  void leading_directions(const AnyMatrix& g, MatrixView<float> p, MatrixView<float> q,
                          std::uint64_t seed, StreamRef stream) override {
    exact_.leading_directions(g, p, q, seed, stream);
  }

 private:
  ExactLearner exact_;
};

class DeviceRun {
 public:
  static constexpr int kSteps = 20, kOverflow = 7, kReload = 12, kZero = 3, kNoGradient = 5;
  static constexpr std::pair<std::int64_t, std::int64_t> kShapes[] = {{39, 29}, {31, 40}, {34, 34}};
  static constexpr int kWeights = 3;

  DeviceRun(DeviceId device, const RunCase& run)
      : case_(run),
        model_(device, specs(run), {kSteps, run.micro_batches, kSteps + 2}, noise),
        streams_(model_.compute(), run.side_streams),
        engine_(make_engine()) {}

  // Returns every weight as f32 before every step and after the last: [weight * (kSteps + 1) +
  // step].
  std::vector<Matrix> trajectory() {
    for (int step = 0; step < kSteps; ++step) {
      if (step == kReload && case_.reloads) reload();
      forward(step);
      backward(step);
      if (step % 4 == 1) look();
      end_step();
    }
    forward(kSteps);
    wait_for(model_.compute());
    std::vector<Matrix> all;
    for (int i = 0; i < kWeights; ++i) {
      for (int step = 0; step <= kSteps; ++step) all.push_back(model_.seen(i, step));
    }
    return all;
  }

  void forward(int step) {
    for (int i = 0; i < kWeights; ++i) {
      engine_->acquire(i, streams_.at(step + i));
      model_.look(i, step);  // On the stream of step(), not that of acquire().
    }
  }

  void backward(int step) {
    for (int k = 0; k < case_.micro_batches; ++k) {
      engine_->prepare(hyper(), model_.weights());
      streams_.fork();
      for (int i = kWeights; i-- > 0;) {
        if (i == 0 && step == kNoGradient) continue;
        const StreamRef stream = streams_.at(step + k + i + 1);
        const MatrixView<float> g = model_.gradient(i, step, k);
        const MatrixView<float> total = model_.gradient(i, step, 0);
        if (i != 2 || step != kZero) compress(g, 1.0F, model_.weight(i), stream);
        if (k > 0) compress(total, 1.0F, DeviceModel::any(g), stream);
        if (case_.as_core && !engine_->wants_gradient(i)) {
          add_core(i, g, stream);
        } else {
          engine_->add_gradient(i, DeviceModel::any(g), DeviceModel::any(total), stream);
        }
      }
      streams_.join();
      engine_->end_backward();
    }
  }

  void end_step() {
    const std::vector<WeightHyper> hypers = hyper();
    const std::vector<AnyMatrix> weights = model_.weights();
    StepRequest request{hypers, weights};
    request.compute = compute();
    outcomes_.push_back(engine_->step(request));
  }

  StreamRef compute() const noexcept { return model_.compute(); }
  HoldWord hold() { return model_.hold(); }
  Event reached() { return model_.reached(); }

  const std::vector<StepOutcome>& outcomes() const { return outcomes_; }
  SubspaceEngine& engine() { return *engine_; }
  std::uint64_t own_bytes() const { return model_.own_bytes(); }  // Without the engine's bytes.

 private:
  static constexpr int kLook = kSteps + 1;  // Slot of an extra look, which no test reads.

  static std::vector<DeviceWeight> specs(const RunCase& run) {
    const DType dtype = run.rounding == Rounding::kNearest ? DType::kF32 : DType::kBF16;
    std::vector<DeviceWeight> all;
    for (const auto& [rows, cols] : kShapes) all.push_back({rows, cols, dtype});
    return all;
  }

  static Matrix noise(Rng& rng, int weight, int step, int micro) {
    Matrix g = rng.matrix(kShapes[weight].first, kShapes[weight].second, 0.3);
    if (weight == 1 && step == kOverflow && micro == 0) {
      g(5, 3) = std::numeric_limits<float>::infinity();
    }
    if (weight == 2 && step == kZero) g = Matrix(g.rows, g.cols);
    return g;
  }

  std::vector<WeightHyper> hyper() const { return std::vector<WeightHyper>(kWeights, kRunHyper); }

  std::unique_ptr<SubspaceEngine> make_engine() const {
    SubspaceOptions options(model_.device());
    options.host_threads = case_.host_threads;
    options.lanes.limits.fill(Budget::kUnlimited);
    options.lanes.order = case_.order;
    options.lanes.h2d = case_.h2d;
    options.gate.norm = case_.norm;
    options.gate.max_norm = case_.max_norm;
    // Without a promise, the second backward of the first step takes payloads back.
    options.gate.promised_backwards = case_.at_once ? case_.micro_batches : 0;
    options.residual_at_once = case_.at_once;
    options.refresh.every = case_.refresh_every;
    options.seed = 17;
    std::vector<WeightSpec> specs;
    for (int i = 0; i < kWeights; ++i) {
      WeightSpec spec;
      spec.name = "w" + std::to_string(i);
      spec.rows = kShapes[i].first;
      spec.cols = kShapes[i].second;
      spec.dtype = model_.spec(i).dtype;
      spec.codec.name = case_.codec;
      spec.codec.ratio = 0.5;
      spec.codec.block = 16;
      spec.wire = case_.wire;
      spec.tier = case_.tier;
      spec.rounding = case_.rounding;
      spec.residual = case_.residual;
      spec.second_moment = case_.second;
      specs.push_back(spec);
    }
    return std::make_unique<SubspaceEngine>(
        options, specs, std::make_unique<LearnerOnCopies<TestLearner>>(model_.device()));
  }

  // Continues in another engine.
  void reload() {
    std::unique_ptr<SubspaceEngine> next = make_engine();
    for (int i = 0; i < kWeights; ++i) next->load_weight(i, engine_->save_weight(i));
    next->set_committed_steps(engine_->committed_steps());
    next->refresh_policy().load(engine_->refresh_policy().save());
    engine_ = std::move(next);
  }

  void add_core(int i, MatrixView<float> g, StreamRef stream) {
    const GradientCodec& codec = *engine_->weight(i).codec;
    const CoreShape shape = codec.core();
    cores_.push_back(model_.zeros(4 * static_cast<std::size_t>(shape.elems())));
    scratches_.push_back(model_.zeros(4 * codec.scratch_elems()));
    const MatrixView<float> core(cores_.back().as<float>().data(), shape.rows, shape.cols);
    codec.compress(DeviceModel::any(g), 0.0F, core, scratches_.back().as<float>(), stream);
    engine_->add_core(i, DeviceModel::any(core), true, stream);
  }

  // Reads the weights once more, when only the step waits for this stream.
  void look() {
    for (int i = 0; i < kWeights; ++i) {
      engine_->acquire(i, compute());
      model_.look(i, kLook);
    }
  }

  RunCase case_;
  DeviceModel model_;
  SideStreams streams_;
  std::vector<Buffer> cores_, scratches_;
  std::unique_ptr<SubspaceEngine> engine_;
  std::vector<StepOutcome> outcomes_;
};

}  // namespace sluiceway::test
