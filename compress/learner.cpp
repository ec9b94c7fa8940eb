#include "compress/learner.h"

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>
#include <c10/core/Stream.h>
#include <c10/core/impl/LocalDispatchKeySet.h>
#include <c10/core/impl/VirtualGuardImpl.h>

#include <algorithm>
#include <array>
#include <cstdint>

#include "compress/learner_objective.h"
#include "compress/learner_tensors.h"
#include "kernels/base/check.h"

namespace sluiceway {
namespace {

at::Device torch_device(StreamRef stream) {
  if (stream.is_host()) return at::Device(at::kCPU);
  const int ordinal = stream.device().ordinal();
  if (at::hasCUDA()) return at::Device(at::kCUDA, static_cast<at::DeviceIndex>(ordinal));
  throw Unavailable(concat("learn: the stream is on ", to_string(stream.device()),
                           ", but this torch sees no GPU; install a torch with CUDA"));
}

// Returns when all work that torch has enqueued on a GPU is done.
void wait_for_torch(at::Device device) {
  if (device.is_cpu()) return;
  c10::impl::VirtualGuardImpl(device.type()).getStream(device).synchronize();
}

at::Tensor tensor_of(void* first, std::array<std::int64_t, 2> shape, std::int64_t stride,
                     at::ScalarType type, at::Device device) {
  return at::for_blob(first, shape)
      .strides(std::array<std::int64_t, 2>{stride, 1})
      .options(at::TensorOptions().dtype(type).device(device))
      .target_device(device)
      .make_tensor();
}

// Returns `g` itself if it is f32 and no copy is requested.
at::Tensor as_f32_tensor(const AnyMatrix& g, at::Device device, bool copy) {
  const at::ScalarType type = g.dtype == DType::kF32   ? at::kFloat
                              : g.dtype == DType::kF16 ? at::kHalf
                                                       : at::kBFloat16;
  return tensor_of(g.data, {g.rows, g.cols}, g.stride, type, device)
      .to(at::kFloat, /*non_blocking=*/false, copy);
}

SparsePattern pattern_of(const LearnableRows& x, at::Device device) {
  // A tensor needs a mutable pointer; only the copy in another type is kept.
  const at::Tensor index =
      tensor_of(const_cast<std::int32_t*>(x.index), {x.rows, x.nnz}, x.nnz, at::kInt, device);
  return {index.to(at::kLong), x.cols};
}

at::Tensor values_of(const LearnableRows& x, at::Device device) {
  return tensor_of(x.value.data(), {x.rows, x.nnz}, x.nnz, at::kFloat, device);
}

void check_half(const char* name, const LearnableRows& x, std::int64_t rows, const AnyMatrix& g) {
  SLUICEWAY_CHECK(x.rows == rows && std::ssize(x.value) == x.rows * x.nnz, "learn: ", name, " is ",
                  x.rows, "x", x.cols, " with ", x.value.size(), " values, expected ", rows,
                  " rows of ", x.nnz, " for a gradient of ", g.rows, "x", g.cols);
}

void check_directions(const char* name, MatrixView<float> x, std::int64_t rows,
                      const AnyMatrix& g) {
  const std::int64_t most = std::min(g.rows, g.cols);
  SLUICEWAY_CHECK(x.cols == 0 || (x.rows == rows && x.cols <= most), "learn: ", name, " is ",
                  x.rows, "x", x.cols, ", expected ", rows, " rows and at most ", most, " columns");
}

void copy_to(MatrixView<float> to, const at::Tensor& from, at::Device device) {
  if (to.cols == 0) return;
  tensor_of(to.data, {to.rows, to.cols}, to.stride, at::kFloat, device).copy_(from);
}

// Learning uses f32, whatever surrounds the backward: hooks inherit its autocast, and a GPU would
// round the factors of f32 products to TF32 if the user allows that for the model.
class FullPrecision {
  c10::impl::ExcludeDispatchKeyGuard without_autocast_{c10::autocast_dispatch_keyset};
  at::NoTF32Guard without_tf32_;
};

class TorchLearner final : public ProjectorLearner {
 public:
  void leading_directions(const AnyMatrix& g, MatrixView<float> p, MatrixView<float> q,
                          std::uint64_t seed, StreamRef stream) override {
    check_directions("P", p, g.rows, g);
    check_directions("Q", q, g.cols, g);
    const at::Device device = torch_device(stream);
    const at::NoGradGuard no_grad;
    const FullPrecision full_precision;
    const Directions found =
        leading_directions_of(as_f32_tensor(g, device, true), p.cols, q.cols, seed);
    copy_to(p, found.left, device);
    copy_to(q, found.right, device);
    wait_for_torch(device);
  }

  LearnOutcome learn(const AnyMatrix& g, const LearnableRows& p, const LearnableRows& q,
                     const LearnOptions& options, StreamRef stream) override {
    check_half("P", p, g.rows, g);
    check_half("Q", q, g.cols, g);
    const at::Device device = torch_device(stream);
    const at::NoGradGuard no_grad;
    const FullPrecision full_precision;
    const LearnOutcome outcome =
        learn_values(as_f32_tensor(g, device, false), pattern_of(p, device), pattern_of(q, device),
                     values_of(p, device), values_of(q, device), options);
    wait_for_torch(device);
    return outcome;
  }
};

}  // namespace

std::unique_ptr<ProjectorLearner> make_torch_learner() { return std::make_unique<TorchLearner>(); }

}  // namespace sluiceway
