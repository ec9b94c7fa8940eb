// Runs twenty steps of the offload engine on any device (device_model.h), with five tensors: some
// have chunks of their own, one of them two, and some share one.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <memory>
#include <optional>
#include <ostream>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "kernels/base/error.h"
#include "kernels/compress.h"
#include "kernels/gradient_copy.h"
#include "runtime/device/device_memory.h"
#include "runtime/engine/offload/offload_engine.h"
#include "runtime/engine/offload/offload_footprint.h"
#include "tests/support/device_model.h"
#include "tests/support/io_back_ends.h"
#include "tests/support/side_streams.h"

namespace sluiceway::test {

inline constexpr TensorHyper kRunHyper{1e-2, 0.9, 0.99, 1e-8, 0.1};

struct RunCase {
  std::string name;
  std::string codec = "identity";
  DType dtype = DType::kBF16;     // Of all weights but the norm's, which are f32.
  DType gradient = DType::kBF16;  // In the stored form.
  bool f32_gradients = false;     // As they arrive; else in the type of their weights.
  WireFormat wire = WireFormat::kBF16;
  CoreSpill spill = CoreSpill::kGradient;
  int redraw = 0;
  UpdatePolicy policy = UpdatePolicy::kSpill;
  std::uint64_t park_bytes = 0;
  bool redo = false;
  int micro_batches = 1;
  double max_norm = 0;
  Order order = Order::kEdf;
  bool on_disk = false;
  bool overflows = false;  // Half of the states find no room in host memory.
  LinkCopy::Config link = {};
  int side_streams = 0;  // Gradients come in turn on this many streams and that of the model.

  int host_threads = 1;
  StateCodec states = StateCodec::kFp32;
  // The weights that have chunks of their own: two blocks, and one that stays on the device.
  bool streamed = false;

  bool compresses() const { return codec != "identity"; }
  friend void PrintTo(const RunCase& run, std::ostream* out) { *out << run.name; }
};

class DeviceRun {
 public:
  static constexpr int kSteps = 20, kOverflow = 7, kReload = 12, kNoGradient = 5, kDropped = 9;
  static constexpr std::pair<std::int64_t, std::int64_t> kShapes[] = {
      {39, 71}, {40, 60}, {1, 64}, {31, 40}, {3, 2}};
  static constexpr int kTensors = 5, kCompressed = 1, kNorm = 2;
  static constexpr std::size_t kMostElems = std::size_t{39} * 71;
  // Looks before each step, after the last, and after backwards, when only the step waits.
  static constexpr int kLooks = 2 * kSteps + 1;

  DeviceRun(DeviceId device, const RunCase& run)
      : case_(run),
        model_(device, specs(run), {kSteps, run.micro_batches, kLooks}, noise),
        streams_(model_.compute(), run.side_streams),
        scans_(model_.zeros(streams_.size() * sizeof(ScanResult))),
        nothing_(model_.place(std::vector<std::byte>(4 * kMostElems, std::byte{0xFF}))) {
    if (run.on_disk || run.overflows) drive_.emplace();
    if (run.overflows) {
      const OffloadFootprint all = footprint();
      host_limit_ = all.store_bytes + all.table_bytes + all.cores.host_bytes - all.state_bytes / 2;
    }
    engine_ = make_engine();
    engine_->begin(model_.weights(), compute());
    stream();
  }

  // Returns every weight as f32 at every look: [tensor * kLooks + look].
  std::vector<Matrix> trajectory() {
    for (int step = 0; step < kSteps; ++step) {
      look(step);
      if (step == kReload) {
        reload();
        look(step);
      }
      if (step == kDropped) drop(step);
      backward(step);
      if (step % 4 == 1) look(kSteps + 1 + step);
      end_step();
    }
    look(kSteps);
    wait_for(compute());
    // Destroys the engine while a core that nobody needs is being made.
    if (case_.compresses()) give(kCompressed, 0, 0, compute());
    std::vector<Matrix> all;
    for (int i = 0; i < kTensors; ++i) {
      for (int at = 0; at < kLooks; ++at) all.push_back(model_.seen(i, at));
    }
    return all;
  }

  void look(int at) {
    for (int i = 0; i < kTensors; ++i) {
      if (is_streamed(i)) continue;
      engine_->acquire(i, streams_.at(at + i));
      model_.look(i, at);  // On the stream of step(), not that of acquire().
    }
    for (int block = 0; case_.streamed && block < std::ssize(kBlocks); ++block) {
      fetch(block, WeightFetch::Phase::kForward);
      for (const int i : kBlocks[std::size_t(block)]) model_.look(i, at, weight(i));
      let_go(block, WeightFetch::Phase::kForward);
    }
  }

  void backward(int step) {
    engine_->expect(hyper(), 0.5F);
    for (int k = 0; k < case_.micro_batches; ++k) {
      streams_.fork();
      for (int i = kTensors; i-- > 0;) {
        if (i == 0 && step == kNoGradient) continue;
        const StreamRef stream = streams_.at(step + k + i + 1);
        if (is_streamed(i) && i == block_of(i).back()) fetch(number_of(i), kBackward);
        compress(model_.gradient(i, step, k), 1.0F, weight(i), stream);
        give(i, step, k, stream);
        if (is_streamed(i) && i == block_of(i).front()) let_go(number_of(i), kBackward);
      }
      streams_.join();
      engine_->end_backward();
    }
  }

  void end_step() {
    const std::vector<TensorHyper> hypers = hyper();
    const std::vector<AnyMatrix> weights = model_.weights();
    OffloadRequest request{hypers, weights};
    request.factor = 0.5F;
    request.compute = compute();
    outcomes_.push_back(engine_->step(request));
  }

  Event reached() { return model_.reached(); }

  const RunCase& run() const { return case_; }
  const std::vector<StepOutcome>& outcomes() const { return outcomes_; }
  OffloadEngine& engine() { return *engine_; }
  OffloadFootprint footprint() const {
    FootprintRequest request;
    request.gradient = case_.gradient;
    request.chunk_elems = ChunkPlan::kStoredAlignment;
    request.micro_batches = case_.micro_batches;
    request.slots = state_slots(case_.policy, !case_.on_disk);
    request.in_place_limit = host_limit_;
    request.cores = cores();
    request.policy = case_.policy;
    request.park_room = case_.park_bytes;
    request.codec = case_.states;
    request.device = model_.device();
    return offload_footprint(tensors(), request);
  }

 private:
  static constexpr auto kBackward = WeightFetch::Phase::kBackward;
  static inline const std::vector<std::vector<int>> kBlocks = {{0}, {1}};
  static constexpr int kStays = 3;

  bool is_streamed(int i) const { return case_.streamed && (i == 0 || i == 1); }
  static int number_of(int i) { return i == 0 ? 0 : 1; }
  static const std::vector<int>& block_of(int i) { return kBlocks.at(std::size_t(number_of(i))); }

  // Call after begin() or resume() of another engine.
  void stream() {
    if (case_.streamed) engine_->stream(kBlocks, 1);
  }

  void fetch(int block, WeightFetch::Phase phase) {
    held_ = engine_->fetch().acquire(phase, block, compute());
  }
  void let_go(int block, WeightFetch::Phase phase) {
    engine_->fetch().release(phase, block, compute());
    held_.clear();
  }

  // A weight of the block that was fetched last, or of the model.
  AnyMatrix weight(int i) const {
    AnyMatrix weight = model_.weight(i);
    if (!is_streamed(i)) return weight;
    const std::vector<int>& block = block_of(i);
    const auto at = std::ranges::find(block, i) - block.begin();
    weight.data = const_cast<void*>(held_.at(static_cast<std::size_t>(at)));
    return weight;
  }

  static std::vector<DeviceWeight> specs(const RunCase& run) {
    std::vector<DeviceWeight> all;
    for (int i = 0; i < kTensors; ++i) {
      all.push_back({kShapes[i].first, kShapes[i].second, i == kNorm ? DType::kF32 : run.dtype});
    }
    return all;
  }

  static Matrix noise(Rng& rng, int tensor, int step, int micro) {
    Matrix g = rng.matrix(kShapes[tensor].first, kShapes[tensor].second, 0.3);
    if (tensor == 3 && step == kOverflow && micro == 0) {
      g(5, 3) = std::numeric_limits<float>::infinity();
    }
    return g;
  }

  static std::vector<TensorHyper> hyper() { return std::vector<TensorHyper>(kTensors, kRunHyper); }

  CoreOptions cores() const {
    CoreOptions cores;
    cores.codec.name = case_.codec;
    cores.codec.ratio = 0.5;
    cores.codec.block = 8;
    cores.codec.seed = 5;
    cores.wire = case_.wire;
    cores.redraw = case_.redraw;
    cores.spill = case_.spill;
    return cores;
  }

  std::vector<TensorSpec> tensors() const {
    std::vector<TensorSpec> all;
    for (int i = 0; i < kTensors; ++i) {
      const auto [rows, cols, dtype] = model_.spec(i);
      const bool stays = case_.streamed && i == kStays;
      all.push_back({"w" + std::to_string(i),
                     {rows, cols},
                     dtype,
                     case_.compresses(),
                     is_streamed(i) || stays,
                     stays});
    }
    return all;
  }

  std::unique_ptr<OffloadEngine> make_engine() const {
    OffloadOptions options(model_.device());
    options.host_threads = case_.host_threads;
    options.lanes.limits.fill(Budget::kUnlimited);
    options.lanes.order = case_.order;
    options.lanes.d2h = options.lanes.h2d = case_.link;
    options.gate.max_norm = case_.max_norm;
    options.gate.promised_backwards = case_.micro_batches;
    options.lanes.limits[static_cast<std::size_t>(Tier::kHost)] = host_limit_;
    if (drive_) {
      StoreOptions& store = case_.overflows ? options.overflow : options.store;
      store.drives = {drive_->str()};
      store.nameless = case_.overflows;
    }
    options.gradient = case_.gradient;
    options.state_codec = case_.states;
    options.cores = cores();
    options.chunk_elems = ChunkPlan::kStoredAlignment;
    options.policy = case_.policy;
    options.redo = case_.redo;
    options.park_bytes = case_.park_bytes;
    return std::make_unique<OffloadEngine>(options, tensors());
  }

  // Continues in another engine: with the same store, or with all states copied to it.
  void reload() {
    if (case_.on_disk) {
      engine_->close();
      engine_.reset();
      engine_ = make_engine();
      engine_->resume(model_.weights(), compute());
      return stream();
    }
    std::unique_ptr<OffloadEngine> next = make_engine();
    for (int i = 0; i < kTensors; ++i) engine_->acquire(i, compute());
    next->begin(model_.weights(), compute());
    for (int i = 0; i < kTensors; ++i) {
      const auto elems = static_cast<std::size_t>(engine_->tensor(i).elems());
      std::vector<float> m(elems), v(elems), master(elems);
      engine_->read_state(i, {m, v, master});
      next->write_state(i, {m, v, master}, engine_->tensor_steps(i));
    }
    next->set_committed_steps(engine_->committed_steps());
    engine_ = std::move(next);
    stream();
  }

  // Drops a step of whole gradients, and resumes while its weights are still read. Then drops a
  // gradient whose core is still being made when its projectors are drawn anew.
  void drop(int step) {
    backward(step);
    engine_->drop();
    look(step);
    engine_->resume(model_.weights(), compute());
    if (case_.redraw == 0) return;
    give(kCompressed, step, 0, compute());
    engine_->drop();
    engine_->set_committed_steps(engine_->committed_steps() + case_.redraw);
  }

  // Gives a gradient in memory of its own. As in torch, released memory is reused by the computing
  // stream's next work: it is overwritten there.
  void give(int i, int step, int micro, StreamRef stream) {
    const MatrixView<float> g = model_.gradient(i, step, micro);
    const DType dtype = case_.f32_gradients ? DType::kF32 : model_.spec(i).dtype;
    const auto elems = static_cast<std::size_t>(g.rows * g.cols);
    const std::span<std::byte> lent =
        lent_.emplace_back(model_.zeros(elems * size_bytes(dtype))).as<std::byte>();
    copy_in_stream(g.data, lent, dtype, stream);
    const std::shared_ptr<const void> keep(
        lent.data(), [this, lent, dtype, stream](const void*) { write_over(lent, dtype, stream); });
    const auto count = static_cast<std::int64_t>(elems);
    engine_->add_gradient(i, {lent.data(), 1, count, count, dtype}, keep, stream);
  }

  void write_over(std::span<std::byte> lent, DType dtype, StreamRef stream) noexcept {
    if (model_.device().is_host()) {
      std::ranges::fill(lent, std::byte{0xFF});
      return;
    }
    try {
      copy_in_stream(nothing_.as<float>().data(), lent, dtype, stream);
    } catch (const CudaError&) {  // The engine reports it.
    }
  }

  void copy_in_stream(const float* from, std::span<std::byte> to, DType dtype, StreamRef stream) {
    const std::size_t elems = to.size() / size_bytes(dtype);
    gradient_copy(std::as_bytes(std::span(from, elems)), DType::kF32, to, dtype,
                  scans_.as<ScanResult>().data() + streams_.number_of(stream), stream);
  }

  StreamRef compute() const noexcept { return model_.compute(); }

  RunCase case_;
  DeviceModel model_;
  SideStreams streams_;
  Buffer scans_, nothing_;  // By stream; NaNs.
  std::vector<Buffer> lent_;
  std::vector<const void*> held_;  // Weights of the block that was fetched last.
  std::optional<ScratchPath> drive_;
  std::uint64_t host_limit_ = Budget::kUnlimited;
  std::unique_ptr<OffloadEngine> engine_;
  std::vector<StepOutcome> outcomes_;
};

}  // namespace sluiceway::test
