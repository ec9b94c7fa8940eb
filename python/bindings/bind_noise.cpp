// Noise of a tensor's elements, and what a zeroth-order step makes of a weight with it.
#include <pybind11/stl.h>

#include <optional>
#include <string>
#include <tuple>
#include <vector>

#include "kernels/noise.h"
#include "kernels/perturb.h"
#include "python/bindings/bindings.h"
#include "python/bindings/gil.h"
#include "python/bindings/noise_family.h"
#include "python/bindings/tensor_view.h"

namespace sluiceway {
namespace {

using Compute = std::optional<StreamRef>;
// Seed, step, tensor, purpose and scale.
using Pending =
    std::vector<std::tuple<std::uint64_t, std::uint64_t, std::uint64_t, std::uint32_t, float>>;

std::vector<PendingUpdate> updates_of(const Pending& pending) {
  std::vector<PendingUpdate> updates;
  updates.reserve(pending.size());
  for (const auto& [seed, step, tensor, purpose, scale] : pending) {
    updates.push_back({{seed, step, tensor, purpose}, scale});
  }
  return updates;
}

std::span<std::byte> bytes_of(const StreamRef& stream, const Tensor& tensor, const char* what) {
  check_on(stream, tensor, what);
  SLUICEWAY_CHECK(tensor.has_elements(), what, ", a ", kNoElements);
  SLUICEWAY_CHECK(tensor.is_contiguous(), what, ": is not contiguous; call .contiguous()");
  return {static_cast<std::byte*>(tensor.data()), tensor.nbytes()};
}

void draw(const Tensor& out, const std::string& family, std::uint64_t seed, std::uint64_t step,
          std::uint64_t tensor, std::uint32_t purpose, std::uint64_t first,
          const Compute& compute) {
  const StreamRef stream = compute.value_or(StreamRef::host());
  check_on(stream, out, "out");
  const std::span<float> to = f32_span(out, "out");
  const NoiseFamily drawn = parse_family(family);
  const GilReleased unlocked;
  draw_noise(to, {seed, step, tensor, purpose}, first, drawn, stream);
}

void perturb_tensor(const Tensor& w, const Tensor& plus, const Tensor& minus,
                    const Pending& pending, float gamma, float eps, const std::string& family,
                    std::uint64_t seed, std::uint64_t step, std::uint64_t tensor,
                    std::uint32_t purpose, std::uint64_t first, const Compute& compute) {
  const StreamRef stream = compute.value_or(StreamRef::host());
  const auto from = bytes_of(stream, w, "w");
  const auto up = bytes_of(stream, plus, "plus"), down = bytes_of(stream, minus, "minus");
  const DType from_dtype = dtype_of_tensor(w, "w"), dtype = dtype_of_tensor(plus, "plus");
  SLUICEWAY_CHECK(minus.type() == plus.type(), "minus: is ", minus.type_name(), ", expected ",
                  plus.type_name(), " as plus is");
  const std::vector<PendingUpdate> updates = updates_of(pending);
  const Theta theta{parse_family(family), first, gamma, updates};
  const GilReleased unlocked;
  perturb(from, from_dtype, up, down, dtype, theta, {seed, step, tensor, purpose}, eps, stream);
}

void materialise_tensor(const Tensor& w, const Tensor& out, const Pending& pending, float gamma,
                        const std::string& family, std::uint64_t first,
                        const StochasticKey& stochastic, const Compute& compute) {
  const StreamRef stream = compute.value_or(StreamRef::host());
  const auto from = bytes_of(stream, w, "w"), to = bytes_of(stream, out, "out");
  const DType from_dtype = dtype_of_tensor(w, "w"), dtype = dtype_of_tensor(out, "out");
  const std::vector<PendingUpdate> updates = updates_of(pending);
  const Theta theta{parse_family(family), first, gamma, updates};
  const auto [rounding, key] = rounding_of(stochastic);
  const GilReleased unlocked;
  materialise(from, from_dtype, to, dtype, theta, rounding, key, stream);
}

}  // namespace

void bind_noise(py::module_& m) {
  m.def("stable_hash", &stable_hash, py::arg("name"),
        "64 bits of a name, equal on every machine: the `tensor` of a key of noise.");
  m.def("draw_noise", &draw, py::arg("out"), py::arg("family"), py::arg("seed"), py::arg("step"),
        py::arg("tensor"), py::arg("purpose"), py::arg("first") = 0,
        py::arg("compute") = py::none(),
        "Fill a float32 tensor with elements `first` and on of the noise of a key.");
  m.def("perturb", &perturb_tensor, py::arg("w"), py::arg("plus"), py::arg("minus"),
        py::arg("pending"), py::arg("gamma"), py::arg("eps"), py::arg("family"), py::arg("seed"),
        py::arg("step"), py::arg("tensor"), py::arg("purpose"), py::arg("first") = 0,
        py::arg("compute") = py::none(),
        "Write theta + eps z and theta - eps z, where theta is gamma (w + the pending updates), "
        "each of them (seed, step, tensor, purpose, scale).");
  m.def("materialise", &materialise_tensor, py::arg("w"), py::arg("out"), py::arg("pending"),
        py::arg("gamma"), py::arg("family"), py::arg("first") = 0,
        py::arg("stochastic") = py::none(), py::arg("compute") = py::none(),
        "Write theta, rounded to nearest, or to bfloat16 with the random bits of the key "
        "(seed, step, tensor, purpose) that `stochastic` is.");
}

}  // namespace sluiceway
