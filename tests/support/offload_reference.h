// A model without layers, its gradients, and AdamW over it in memory: the result that the offload
// engine must reach bit for bit.
//
// A gradient is a function of its tensor, step and micro-batch. It is kept in bf16, whatever the
// tensor's own dtype is, and several are summed in f32 in their order; the reference does the same.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "runtime/engine/offload/offload_engine.h"

namespace sluiceway::test {

inline constexpr float kStepFactor = 0.5F;  // As if a loss scale of 2 were removed.

// Tensors of which some share chunks of 4096 elements, some have chunks of their own, and one has
// four.
std::vector<TensorSpec> mixed_specs();

// On the host device, without budgets, in chunks of 4096 elements; without drives: in host memory.
OffloadOptions small_chunk_options(const std::vector<std::string>& drives = {},
                                   IoChoice io = IoChoice::kAuto);

// Tells whether a tensor has a gradient in a micro-batch.
using HasGradient = std::function<bool(int tensor, int batch)>;

class OffloadModel {
 public:
  OffloadModel(const std::vector<TensorSpec>& specs, std::uint64_t seed);

  int size() const noexcept { return static_cast<int>(specs_.size()); }
  const TensorSpec& spec(int tensor) const { return specs_.at(at(tensor)); }
  std::vector<AnyMatrix> tensors();  // Views of the weights.
  const std::vector<std::byte>& bytes(int tensor) const { return weights_.at(at(tensor)); }

 private:
  static std::size_t at(int tensor) { return static_cast<std::size_t>(tensor); }
  std::vector<TensorSpec> specs_;
  std::vector<std::vector<std::byte>> weights_;
};

// Names the first tensor that differs; empty if none does.
std::string difference(const OffloadModel& found, const OffloadModel& expected);

// The gradients of one micro-batch, in memory that is freed once the engine no longer needs it.
class OffloadGradients {
 public:
  OffloadGradients(const OffloadModel& model, std::int64_t step, int batch);

  void add_to(OffloadEngine& engine, int tensor);
  const std::vector<std::byte>& bytes(int tensor) const {  // Before it is given away.
    return *bytes_.at(static_cast<std::size_t>(tensor));
  }
  void poison(int tensor, float value);  // Overwrites one element.
  int held() const;  // Gradients that the engine has and that have not left the device.

 private:
  std::vector<std::shared_ptr<std::vector<std::byte>>> bytes_;
  std::vector<std::weak_ptr<std::vector<std::byte>>> given_;
  std::vector<DType> dtypes_;
};

OffloadRequest request_of(OffloadModel& model);  // Its spans live until the next call.

// Runs the backwards, of which the engine is told in advance, and the step; returns the engine's
// outcome.
StepOutcome run_step(OffloadEngine& engine, OffloadModel& model, std::int64_t step, int batches,
                     const HasGradient& has = {});

// Names the first tensor whose states or count of steps differ; empty if none does.
std::string state_difference(OffloadEngine& found, OffloadEngine& expected);

class OffloadReference {
 public:
  // With a codec, states are rounded after each step, in whole tensors.
  explicit OffloadReference(const OffloadModel& model, StateCodec codec = StateCodec::kFp32);

  double norm(std::int64_t step, int batches) const;  // Norm of the unscaled sums.
  void step(std::int64_t step, int batches, float factor, const HasGradient& has = {});

  std::int64_t steps(int tensor) const { return steps_.at(static_cast<std::size_t>(tensor)); }
  std::string difference(const OffloadModel& model) const;  // Compares the weights.
  std::string state_difference(OffloadEngine& engine) const;

 private:
  void round(std::size_t tensor);

  std::vector<TensorSpec> specs_;
  StateCodec codec_;
  std::vector<std::vector<float>> m_, v_, master_;
  std::vector<std::int64_t> steps_;
};

}  // namespace sluiceway::test
