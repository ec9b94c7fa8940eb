// State of one weight as a dictionary of tensors, for state_dict(); keys as torch.optim.AdamW's.
#include "python/bindings/bind_weight_state.h"

#include <array>
#include <cstring>
#include <vector>

#include "python/bindings/tensor_view.h"

namespace sluiceway {
namespace {

Tensor bytes_of(std::span<const std::byte> bytes) {
  const std::array shape{static_cast<std::int64_t>(bytes.size())};
  Tensor tensor = empty_tensor(shape, ElementType::kUInt8);
  if (!bytes.empty()) std::memcpy(tensor.data(), bytes.data(), bytes.size());
  return tensor;
}

Tensor floats_of(std::span<const float> values, const std::vector<std::int64_t>& shape) {
  Tensor tensor = empty_tensor(shape, ElementType::kFloat32);
  if (!values.empty()) std::memcpy(tensor.data(), values.data(), values.size_bytes());
  return tensor;
}

template <typename T>
std::span<const T> span_of(const Tensor& tensor, const char* key) {
  check_host(tensor, key);
  SLUICEWAY_CHECK(tensor.type() == ElementType::kUInt8 && tensor.is_contiguous(),
                  "load_state_dict: ", key, " is ", tensor.type_name(),
                  ", expected contiguous uint8");
  const auto size = static_cast<std::size_t>(tensor.numel());
  SLUICEWAY_CHECK(size % sizeof(T) == 0, "load_state_dict: ", key, " has ", size,
                  " bytes, expected a multiple of ", sizeof(T));
  return {static_cast<const T*>(tensor.data()), size / sizeof(T)};
}

Tensor tensor_of(const py::dict& state, const char* key) { return state[key].cast<Tensor>(); }

std::span<const float> moment_of(const py::dict& state, const char* key) {
  return f32_span(tensor_of(state, key), key);
}

py::typing::Dict<py::str, py::object> weight_state(SubspaceEngine& engine, int weight) {
  const WeightState saved = engine.save_weight(weight);
  const CoreShape core = engine.weight(weight).plan.core;
  const auto second = static_cast<std::int64_t>(saved.exp_avg_sq.size());
  const bool factored = engine.weight(weight).spec.second_moment == SecondMoment::kFactored;
  py::typing::Dict<py::str, py::object> state;
  state["step"] = saved.step;
  state["exp_avg"] = floats_of(saved.exp_avg, {core.rows, core.cols});
  state["exp_avg_sq"] = factored ? floats_of(saved.exp_avg_sq, {second})
                                 : floats_of(saved.exp_avg_sq, {core.rows, core.cols});
  state["codec"] = bytes_of(saved.codec);
  state["low_bits"] = bytes_of(std::as_bytes(saved.low_bits));
  state["backwards"] = saved.backwards;
  state["residual"] = bytes_of(std::as_bytes(saved.residual));
  state["residual_step"] = saved.residual_step;
  return state;
}

// Looks into the tensors of `state`, which outlives it.
WeightState state_of(const py::dict& state) {
  WeightState result;
  result.step = state["step"].cast<std::int64_t>();
  result.exp_avg = moment_of(state, "exp_avg");
  result.exp_avg_sq = moment_of(state, "exp_avg_sq");
  const std::span<const std::byte> codec = span_of<std::byte>(tensor_of(state, "codec"), "codec");
  result.codec.assign(codec.begin(), codec.end());
  result.low_bits = span_of<std::uint16_t>(tensor_of(state, "low_bits"), "low_bits");
  result.backwards = state["backwards"].cast<int>();
  result.residual = span_of<float>(tensor_of(state, "residual"), "residual");
  result.residual_step = state["residual_step"].cast<std::int64_t>();
  return result;
}

}  // namespace

void bind_weight_state(EngineClass<SubspaceEngine>& engine) {
  engine
      .def("weight_state", &weight_state, py::arg("weight"),
           "step, exp_avg (core-shaped), exp_avg_sq (too, or means of rows and columns), codec, "
           "low_bits, backwards, residual, residual_step: all copies.")
      .def(
          "check_weight_state",
          [](SubspaceEngine& e, int weight, const py::dict& state) {
            e.check_weight(weight, state_of(state));
          },
          py::arg("weight"), py::arg("state"),
          "Raise what load_weight_state would raise; nothing is changed.")
      .def(
          "load_weight_state",
          [](SubspaceEngine& e, int weight, const py::dict& state) {
            e.load_weight(weight, state_of(state));
          },
          py::arg("weight"), py::arg("state"), "Take over what weight_state gave.")
      .def(
          "refresh_state", [](SubspaceEngine& e) { return bytes_of(e.refresh_policy().save()); },
          "When each weight was measured last, as bytes.")
      .def(
          "load_refresh_state",
          [](SubspaceEngine& e, const Tensor& bytes) {
            e.refresh_policy().load(span_of<std::byte>(bytes, "refresh"));
          },
          py::arg("state"), "Take over what refresh_state gave.");
}

}  // namespace sluiceway
