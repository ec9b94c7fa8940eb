// The learner works where its gradient lies, and only numbers cross to the host.
//
// The device is made up, with torch's key for third-party devices. Its memory is the host's, and
// every operator is passed on to the CPU's, with two exceptions: an operator whose operands lie on
// two devices fails, as on a GPU; so does one that draws random numbers, since a device's own
// generator would draw different ones than the host's. The test counts what crosses to the host.
#include <ATen/ATen.h>
#include <ATen/EmptyTensor.h>
#include <ATen/native/CPUFallback.h>
#include <ATen/ops/as_strided_native.h>
#include <ATen/ops/resize_native.h>
#include <ATen/ops/view_native.h>
#include <c10/core/impl/DeviceGuardImplInterface.h>
#include <gtest/gtest.h>
#include <torch/library.h>

#include <cstdlib>
#include <string>
#include <vector>

#include "compress/learner_tensors.h"
#include "tests/compress/codec_fixture.h"

namespace sluiceway::test {
namespace {

const at::Device kOther(at::kPrivateUse1, 0);

// Crossings since the last look; inside an operator nothing counts.
int operator_depth = 0;
std::int64_t crossed_elems = 0;
std::int64_t crossings = 0;

class OtherMemory final : public c10::Allocator {
 public:
  at::DataPtr allocate(std::size_t bytes) override {
    void* const memory = std::malloc(bytes + 1);
    return {memory, memory, &std::free, kOther};
  }
  at::DeleterFnPtr raw_deleter() const override { return &std::free; }
  void copy_data(void* to, const void* from, std::size_t bytes) const override {
    default_copy_data(to, from, bytes);
  }
};

OtherMemory* memory() {
  static auto* const one = new OtherMemory;
  return one;
}

const c10::DispatchKeySet kOtherKeys(c10::DispatchKey::PrivateUse1);

at::Tensor empty(at::IntArrayRef size, std::optional<at::ScalarType> type,
                 std::optional<at::Layout> /*layout*/, std::optional<at::Device> /*device*/,
                 std::optional<bool> /*pinned*/, std::optional<at::MemoryFormat> format) {
  return at::detail::empty_generic(size, memory(), kOtherKeys, type.value_or(at::kFloat), format);
}

at::Tensor empty_strided(at::IntArrayRef size, at::IntArrayRef stride,
                         std::optional<at::ScalarType> type, std::optional<at::Layout> /*layout*/,
                         std::optional<at::Device> /*device*/, std::optional<bool> /*pinned*/) {
  return at::detail::empty_strided_generic(size, stride, memory(), kOtherKeys,
                                           type.value_or(at::kFloat));
}

// The same memory as a CPU tensor.
at::Tensor seen_by_host(const at::Tensor& x) {
  return at::from_blob(x.data_ptr(), x.sizes(), x.strides(),
                       at::TensorOptions().dtype(x.scalar_type()));
}

at::Tensor copy_from(const at::Tensor& from, const at::Tensor& to, bool /*non_blocking*/) {
  if (operator_depth == 0 && to.is_cpu()) {
    crossed_elems += from.numel();
    ++crossings;
  }
  seen_by_host(to).copy_(seen_by_host(from));
  return to;
}

at::Tensor copy_from_and_resize(const at::Tensor& from, const at::Tensor& to) {
  to.resize_(from.sizes());
  return copy_from(from, to, false);
}

at::Scalar one_number(const at::Tensor& x) {
  if (operator_depth == 0) ++crossings, ++crossed_elems;
  return seen_by_host(x).item();
}

void refuse_two_devices(const c10::OperatorHandle& op, const torch::jit::Stack& stack) {
  const auto check = [&](const at::Tensor& x) {
    // A GPU also accepts single numbers of the host.
    const bool there = !x.defined() || x.device() == kOther || x.dim() == 0;
    TORCH_CHECK(there, op.schema().name(), ": an operand is on ", x.device(),
                ", the others are on ", kOther);
  };
  for (const c10::IValue& value : torch::jit::last(stack, op.schema().arguments().size())) {
    if (value.isTensor()) check(value.toTensor());
    if (value.isTensorList()) {
      for (const at::Tensor& x : value.toTensorVector()) check(x);
    }
  }
}

void refuse_draws(const c10::OperatorHandle& op) {
  for (const c10::Argument& argument : op.schema().arguments()) {
    TORCH_CHECK(argument.type()->str().find("Generator") == std::string::npos, op.schema().name(),
                ": draws random numbers on ", kOther, ", expected on the host");
  }
}

void by_the_cpu(const c10::OperatorHandle& op, torch::jit::Stack* stack) {
  refuse_two_devices(op, *stack);
  refuse_draws(op);
  ++operator_depth;
  at::native::cpu_fallback(op, stack);
  --operator_depth;
}

C10_REGISTER_GUARD_IMPL(PrivateUse1, c10::impl::NoOpDeviceGuardImpl<at::kPrivateUse1>)

TORCH_LIBRARY_IMPL(_, PrivateUse1, m) {
  m.fallback(torch::CppFunction::makeFromBoxedFunction<&by_the_cpu>());
}

TORCH_LIBRARY_IMPL(aten, PrivateUse1, m) {
  m.impl("empty.memory_format", &empty);
  m.impl("empty_strided", &empty_strided);
  m.impl("as_strided", &at::native::as_strided_tensorimpl);
  m.impl("view", TORCH_FN(at::native::view));
  m.impl("resize_", TORCH_FN(at::native::resize_));
  m.impl("_copy_from", &copy_from);
  m.impl("_copy_from_and_resize", &copy_from_and_resize);
  m.impl("_local_scalar_dense", &one_number);
}

class LearnerDeviceTest : public testing::Test {
 protected:
  static constexpr std::int64_t m = 96, n = 64, dm = 48, dn = 32, nnz = 4;

  LearnerDeviceTest() { crossed_elems = crossings = 0; }

  template <typename T>
  static at::Tensor tensor(const T* first, std::int64_t rows, std::int64_t cols,
                           at::ScalarType type, at::Device device) {
    return at::for_blob(const_cast<T*>(first), {rows, cols})
        .options(at::TensorOptions().dtype(type).device(device))
        .target_device(device)
        .make_tensor();
  }
  at::Tensor gradient(at::Device device) const {
    return tensor(g.v.data(), m, n, at::kFloat, device);
  }

  struct Learned {
    std::vector<float> p, q;
    LearnOutcome outcome;
  };
  // A seeded pair on a device, learned there.
  Learned learn(at::Device device, const LearnOptions& options) {
    Budget budget = Budget::unlimited();
    SparseProjector pair({.m = m, .n = n, .dm = dm, .dn = dn}, nnz, {1, 0, kWeight},
                         DeviceId::host(), budget);
    const auto pattern = [&](const SparseRows& rows) {
      return SparsePattern(tensor(rows.index, rows.rows, rows.nnz, at::kInt, device).to(at::kLong),
                           rows.cols);
    };
    const auto value = [&](std::span<float> values, std::int64_t rows) {
      return tensor(values.data(), rows, nnz, at::kFloat, device);
    };
    Learned learned;
    learned.outcome = learn_values(gradient(device), pattern(pair.p()), pattern(pair.q()),
                                   value(pair.p_value(), m), value(pair.q_value(), n), options);
    learned.p.assign(pair.p_value().begin(), pair.p_value().end());
    learned.q.assign(pair.q_value().begin(), pair.q_value().end());
    return learned;
  }

  Rng rng{3};
  Matrix g = low_rank_gradient(rng, rng.matrix(m, 4), rng.matrix(n, 4), 0.5);
};

TEST_F(LearnerDeviceTest, OperandsOnTwoDevicesAreRefused) {
  const at::Tensor here = gradient(at::kCPU), there = gradient(kOther);
  EXPECT_THROW(here + there, c10::Error);
  EXPECT_THROW(there.index_select(0, at::zeros({3}, at::kLong)), c10::Error);
  EXPECT_NO_THROW(there + there);
}

TEST_F(LearnerDeviceTest, ADrawByTheDeviceIsRefused) {
  const at::TensorOptions there = at::TensorOptions().dtype(at::kFloat).device(kOther);
  EXPECT_THROW(at::randn({3, 2}, there), c10::Error);
  EXPECT_THROW(at::empty({3}, there).uniform_(), c10::Error);
  EXPECT_NO_THROW(at::randn({3, 2}).to(kOther));
}

TEST_F(LearnerDeviceTest, LearnsWhereTheGradientLiesAsOnTheHost) {
  const LearnOptions options{.max_steps = 12};
  const Learned there = learn(kOther, options);
  const std::int64_t crossed = crossed_elems, times = crossings;
  const Learned here = learn(at::kCPU, options);
  EXPECT_EQ(there.outcome.steps, here.outcome.steps);
  EXPECT_NEAR(there.outcome.bias_before, here.outcome.bias_before, 1e-5);
  EXPECT_NEAR(there.outcome.bias_after, here.outcome.bias_after, 1e-4);
  EXPECT_LT(there.outcome.bias_after, there.outcome.bias_before);
  for (std::size_t i = 0; i < here.p.size(); ++i) EXPECT_NEAR(there.p[i], here.p[i], 1e-3);
  // Four numbers at each evaluation of the objective, and the size of the gradient.
  EXPECT_EQ(times, options.max_steps + 1 + 1);
  EXPECT_EQ(crossed, 4 * (options.max_steps + 1) + 1);
}

TEST_F(LearnerDeviceTest, DirectionsAreFoundWhereTheGradientLiesAsOnTheHost) {
  const std::int64_t columns = 12;
  const Directions there = leading_directions_of(gradient(kOther), columns, columns, 1);
  // Pivots of four range finders, of 20 columns each, and the largest element.
  EXPECT_EQ(crossings, 2 * kPowerIterations + 1);
  EXPECT_EQ(crossed_elems, 2 * kPowerIterations * (columns + kExtraDirections) + 1);
  ASSERT_EQ(there.left.device(), kOther);
  ASSERT_EQ(there.right.device(), kOther);
  const Directions here = leading_directions_of(gradient(at::kCPU), columns, columns, 1);
  // The same spaces: their projections of the gradient agree, whatever the signs.
  const auto energy = [&](const Directions& found) {
    const at::Tensor left = found.left.cpu(), right = found.right.cpu();
    return left.t().mm(gradient(at::kCPU)).mm(right).norm().item<double>();
  };
  EXPECT_NEAR(energy(there), energy(here), 1e-3 * energy(here));
}

TEST_F(LearnerDeviceTest, EqualCallsGiveEqualBitsThere) {
  const LearnOptions options{.max_steps = 5};
  EXPECT_EQ(learn(kOther, options).p, learn(kOther, options).p);
}

}  // namespace
}  // namespace sluiceway::test
