#include "kernels/base/check.h"
#include "python/bindings/bindings.h"
#include "runtime/engine/loss_scale.h"

namespace sluiceway {
namespace {

LossScale::Mode parse_mode(const std::string& name) {
  if (name == "off") return LossScale::Mode::kOff;
  if (name == "static") return LossScale::Mode::kStatic;
  SLUICEWAY_CHECK(name == "dynamic", "loss_scale: is \"", name,
                  "\", expected off, static or dynamic");
  return LossScale::Mode::kDynamic;
}

}  // namespace

void bind_loss_scale(py::module_& m) {
  py::class_<LossScale>(m, "LossScale", "Factor that keeps 16-bit gradients in range.")
      .def(py::init([](const std::string& mode, double initial, std::int64_t growth_interval) {
             LossScale::Config config;
             config.mode = parse_mode(mode);
             config.initial = initial;
             config.growth_interval = growth_interval;
             return LossScale(config);
           }),
           py::arg("mode"), py::arg("initial") = 65536.0, py::arg("growth_interval") = 2000)
      .def_property_readonly("value", &LossScale::value)
      .def("update", &LossScale::update, py::arg("overflowed"))
      .def(
          "state",
          [](const LossScale& scale) {
            const LossScale::State& state = scale.state();
            return std::tuple(state.value, state.clean_steps, state.overflows_at_floor);
          },
          "value, clean_steps, overflows_at_floor: what load() takes.")
      .def(
          "load",
          [](LossScale& scale, double value, std::int64_t clean_steps, std::int64_t at_floor) {
            scale.load({value, clean_steps, at_floor});
          },
          py::arg("value"), py::arg("clean_steps"), py::arg("overflows_at_floor"));
}

}  // namespace sluiceway
