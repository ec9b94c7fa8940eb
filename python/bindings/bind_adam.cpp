// AdamW on parameters that are not compressed: norms, biases, small weights.
#include <algorithm>

#include "kernels/adam.h"
#include "python/bindings/bindings.h"
#include "python/bindings/gil.h"
#include "python/bindings/tensor_view.h"

namespace sluiceway {
namespace {

constexpr std::uint32_t kParameterRoundingPurpose = 2;

template <typename T>
std::span<T> elements(const Tensor& tensor) {
  return {static_cast<T*>(tensor.data()), static_cast<std::size_t>(tensor.numel())};
}

template <typename G>
void step_with(const Tensor& weight, const Tensor& gradient, float factor,
               const AdamMoments& moments, const AdamHyper& hyper, const NoiseKey& key,
               StreamRef stream) {
  const auto g = elements<const G>(gradient);
  if (weight.type() == ElementType::kFloat32) {
    const auto w = elements<float>(weight);
    adam_step(g, factor, moments, hyper, MasterWeight{w, w}, stream);
  } else {
    const auto w = elements<bf16>(weight);
    adam_step(g, factor, moments, hyper, StochasticWeight{w, w, key, 0}, stream);
  }
}

void step_parameter(const std::string& name, const Tensor& weight, const Tensor& gradient,
                    const Tensor& exp_avg, const Tensor& exp_avg_sq, float factor,
                    std::int64_t step, double lr, double beta1, double beta2, double eps,
                    double weight_decay, std::uint64_t seed, const StreamRef& compute) {
  for (const Tensor& each : {weight, gradient, exp_avg, exp_avg_sq}) {
    check_on(compute, each, name.c_str());
  }
  SLUICEWAY_CHECK(weight.is_contiguous() && gradient.is_contiguous() &&
                      std::ranges::equal(weight.shape(), gradient.shape()),
                  name, ": weight is ", shape_text(weight.shape()), " and gradient ",
                  shape_text(gradient.shape()), ", expected equal shapes, both contiguous");
  SLUICEWAY_CHECK(weight.type() == ElementType::kFloat32 || weight.type() == ElementType::kBFloat16,
                  name, ": is ", weight.type_name(), ", expected float32 or bfloat16");
  const AdamMoments moments =
      AdamMoments::in_place(f32_span(exp_avg, "exp_avg"), f32_span(exp_avg_sq, "exp_avg_sq"));
  const AdamHyper hyper{lr, beta1, beta2, eps, weight_decay, step};
  const NoiseKey key{seed, static_cast<std::uint64_t>(step), stable_hash(name),
                     kParameterRoundingPurpose};
  const GilReleased unlocked;
  switch (dtype_of_tensor(gradient, "gradient")) {
    case DType::kF32:
      return step_with<float>(weight, gradient, factor, moments, hyper, key, compute);
    case DType::kBF16:
      return step_with<bf16>(weight, gradient, factor, moments, hyper, key, compute);
    case DType::kF16:
      return step_with<f16>(weight, gradient, factor, moments, hyper, key, compute);
  }
}

}  // namespace

void bind_adam(py::module_& m) {
  m.def("adam_step", &step_parameter, py::arg("name"), py::arg("weight"), py::arg("gradient"),
        py::arg("exp_avg"), py::arg("exp_avg_sq"), py::arg("factor"), py::arg("step"),
        py::arg("lr"), py::arg("beta1"), py::arg("beta2"), py::arg("eps"), py::arg("weight_decay"),
        py::arg("seed"), py::arg("compute"),
        "One AdamW step in place; float32 weights plainly, bfloat16 ones with stochastic "
        "rounding keyed by (seed, step, name).");
}

}  // namespace sluiceway
