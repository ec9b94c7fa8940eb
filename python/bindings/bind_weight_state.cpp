// State of one weight as a dictionary of tensors, for state_dict(); keys as torch.optim.AdamW's.
#include <ATen/Functions.h>

#include <algorithm>
#include <cstring>
#include <vector>

#include "python/bindings/engine_class.h"
#include "python/bindings/tensor_view.h"

namespace sluiceway {
namespace {

at::Tensor copy_matrix(MatrixView<float> values) {
  at::Tensor tensor = at::empty({values.rows, values.cols}, at::kFloat);
  std::memcpy(tensor.mutable_data_ptr<float>(), values.data,
              static_cast<std::size_t>(values.elems()) * sizeof(float));
  return tensor;
}

at::Tensor copy_bytes(const void* bytes, std::size_t size) {
  at::Tensor tensor = at::empty({static_cast<std::int64_t>(size)}, at::kByte);
  if (size != 0) std::memcpy(tensor.mutable_data_ptr(), bytes, size);
  return tensor;
}

std::span<const std::byte> byte_span(const at::Tensor& tensor, const char* what) {
  SLUICEWAY_CHECK(tensor.scalar_type() == at::kByte && tensor.is_contiguous(), what, ": is ",
                  tensor.scalar_type(), ", expected contiguous uint8");
  return {static_cast<const std::byte*>(tensor.const_data_ptr()),
          static_cast<std::size_t>(tensor.numel())};
}

std::span<const float> residual_moments_of(const WeightSlot& slot) {
  return slot.residual ? slot.residual->moments() : std::span<const float>();
}

// Of the second moment: that of the core, or the means of its rows and then of its columns.
std::vector<std::int64_t> second_shape(const WeightSlot& slot) {
  const CoreShape core = slot.plan.core;
  if (slot.spec.second_moment == SecondMoment::kFactored) return {core.rows + core.cols};
  return {core.rows, core.cols};
}

at::Tensor copy_second(const WeightSlot& slot) {
  const std::span<const float> values = slot.second_moment(slot.live);
  at::Tensor tensor = at::empty(second_shape(slot), at::kFloat);
  std::copy(values.begin(), values.end(), tensor.mutable_data_ptr<float>());
  return tensor;
}

py::dict weight_state(SubspaceEngine& engine, int weight) {
  WeightSlot& slot = engine.quiescent_slot(weight);
  const std::vector<std::byte> codec = slot.codec->save();
  const MatrixView<std::uint16_t> low = slot.low_bits();
  py::dict state;
  state["step"] = slot.steps;
  state["exp_avg"] = copy_matrix(slot.moments(slot.live).m);
  state["exp_avg_sq"] = copy_second(slot);
  state["codec"] = copy_bytes(codec.data(), codec.size());
  state["low_bits"] =
      copy_bytes(low.data, static_cast<std::size_t>(low.elems()) * sizeof(std::uint16_t));
  state["backwards"] = slot.expected;
  const std::span<const float> residual = residual_moments_of(slot);
  state["residual"] = copy_bytes(residual.data(), residual.size_bytes());
  state["residual_step"] = slot.residual ? slot.residual->steps() : 0;
  return state;
}

std::span<float> moment_span(const py::dict& state, const char* key, const WeightSlot& slot,
                             at::IntArrayRef expected) {
  const auto tensor = state[key].cast<at::Tensor>();
  SLUICEWAY_CHECK(tensor.sizes() == expected, "load_state_dict: ", key, " of ", slot.spec.name,
                  " is ", tensor.sizes(), ", expected ", expected,
                  "; codec, ratio and second_moment must be those of the saved run");
  return f32_span(tensor, "load_state_dict");
}

void load_weight_state(SubspaceEngine& engine, int weight, const py::dict& state) {
  WeightSlot& slot = engine.quiescent_slot(weight);
  const CoreShape core = slot.plan.core;
  const std::span<float> m = moment_span(state, "exp_avg", slot, {core.rows, core.cols});
  const std::span<float> v = moment_span(state, "exp_avg_sq", slot, second_shape(slot));
  const auto low = byte_span(state["low_bits"].cast<at::Tensor>(), "load_state_dict: low_bits");
  const MatrixView<std::uint16_t> low_bits = slot.low_bits();
  const std::size_t low_size = static_cast<std::size_t>(low_bits.elems()) * sizeof(std::uint16_t);
  SLUICEWAY_CHECK(low.size() == low_size, "load_state_dict: low_bits of ", slot.spec.name, " has ",
                  low.size(), " bytes, expected ", low_size,
                  "; weight_update must be that of the saved run");
  const auto residual =
      byte_span(state["residual"].cast<at::Tensor>(), "load_state_dict: residual");
  const std::size_t residual_size = residual_moments_of(slot).size_bytes();
  SLUICEWAY_CHECK(residual.size() == residual_size, "load_state_dict: residual of ", slot.spec.name,
                  " has ", residual.size(), " bytes, expected ", residual_size,
                  "; residual must be that of the saved run");
  slot.codec->load(byte_span(state["codec"].cast<at::Tensor>(), "load_state_dict: codec"));
  std::copy(m.begin(), m.end(), slot.moments(slot.live).m.data);
  std::copy(v.begin(), v.end(), slot.second_moment(slot.live).begin());
  if (low_size != 0) std::memcpy(low_bits.data, low.data(), low_size);
  if (slot.residual) {
    const auto* const values = reinterpret_cast<const float*>(residual.data());
    slot.residual->load(state["residual_step"].cast<std::int64_t>(),
                        {values, residual_size / sizeof(float)});
  }
  slot.steps = state["step"].cast<std::int64_t>();
  engine.forecast_backwards(weight, state["backwards"].cast<int>());
}

}  // namespace

void bind_weight_state(EngineClass& engine) {
  engine
      .def("weight_state", &weight_state, py::arg("weight"),
           "step, exp_avg (core-shaped), exp_avg_sq (too, or means of rows and columns), codec, "
           "low_bits, backwards, residual, "
           "residual_step: all copies.")
      .def("load_weight_state", &load_weight_state, py::arg("weight"), py::arg("state"))
      .def("refresh_state",
           [](SubspaceEngine& e) {
             const std::vector<std::byte> bytes = e.refresh_policy().save();
             return copy_bytes(bytes.data(), bytes.size());
           })
      .def(
          "load_refresh_state",
          [](SubspaceEngine& e, const at::Tensor& bytes) {
            e.refresh_policy().load(byte_span(bytes, "load_state_dict: refresh"));
          },
          py::arg("state"));
}

}  // namespace sluiceway
