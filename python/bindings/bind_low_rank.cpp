// What a zeroth-order step makes of a matrix with noise of low rank.
#include <pybind11/stl.h>

#include <optional>
#include <tuple>

#include "kernels/low_rank.h"
#include "python/bindings/bindings.h"
#include "python/bindings/gil.h"
#include "python/bindings/noise_family.h"
#include "python/bindings/tensor_view.h"

namespace sluiceway {
namespace {

using Compute = std::optional<StreamRef>;
using Factors = std::optional<std::tuple<Tensor, Tensor>>;  // k x m and k x n.

AnyMatrix matrix_on(const StreamRef& stream, const Tensor& tensor, const char* what) {
  check_on(stream, tensor, what);
  return matrix_view(tensor, what);
}

MatrixView<const float> factor_on(const StreamRef& stream, const Tensor& tensor, const char* what) {
  const AnyMatrix factor = matrix_on(stream, tensor, what);
  SLUICEWAY_CHECK(factor.dtype == DType::kF32, what, ": is ", tensor.type_name(),
                  ", expected float32");
  return factor.as<const float>();
}

LowRank product_on(const StreamRef& stream, const Factors& factors) {
  if (!factors) return {};
  const auto& [left, right] = *factors;
  return {factor_on(stream, left, "a left factor"), factor_on(stream, right, "a right factor")};
}

void perturb_tensor(const Tensor& w, const Tensor& plus, const Tensor& minus,
                    const Factors& pending, float gamma, float eps, const Factors& direction,
                    const Compute& compute) {
  const StreamRef stream = compute.value_or(StreamRef::host());
  const AnyMatrix from = matrix_on(stream, w, "w"), up = matrix_on(stream, plus, "plus");
  const AnyMatrix down = matrix_on(stream, minus, "minus");
  const LowRank added = product_on(stream, pending), drawn = product_on(stream, direction);
  const GilReleased unlocked;
  perturb_low_rank(from, up, down, added, gamma, drawn, eps, stream);
}

void materialise_tensor(const Tensor& w, const Tensor& out, const Factors& pending, float gamma,
                        std::uint64_t first, const StochasticKey& stochastic,
                        const Compute& compute) {
  const StreamRef stream = compute.value_or(StreamRef::host());
  const AnyMatrix from = matrix_on(stream, w, "w"), to = matrix_on(stream, out, "out");
  const LowRank added = product_on(stream, pending);
  const auto [rounding, key] = rounding_of(stochastic);
  const GilReleased unlocked;
  materialise_low_rank(from, to, added, gamma, rounding, key, first, stream);
}

}  // namespace

void bind_low_rank(py::module_& m) {
  m.def(
      "perturb_low_rank", &perturb_tensor, py::arg("w"), py::arg("plus"), py::arg("minus"),
      py::arg("pending"), py::arg("gamma"), py::arg("eps"), py::arg("direction"),
      py::arg("compute") = py::none(),
      "Write theta + eps z and theta - eps z, where theta is gamma (w + L^T R of `pending`) and z "
      "is L^T R of `direction`, each of them a left factor k x m and a right one k x n, or None.");
  m.def("materialise_low_rank", &materialise_tensor, py::arg("w"), py::arg("out"),
        py::arg("pending"), py::arg("gamma"), py::arg("first") = 0,
        py::arg("stochastic") = py::none(), py::arg("compute") = py::none(),
        "Write theta, rounded to nearest, or to bfloat16 with the random bits of the key "
        "(seed, step, tensor, purpose) that `stochastic` is; w begins at element `first` of it.");
}

}  // namespace sluiceway
