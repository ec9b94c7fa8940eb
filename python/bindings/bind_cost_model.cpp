#include <pybind11/stl.h>

#include "kernels/base/check.h"
#include "python/bindings/bindings.h"
#include "runtime/engine/subspace/subspace_lanes.h"
#include "runtime/schedule/cost_model.h"

namespace sluiceway {
namespace {

using Seconds = std::vector<double>;

double predict_step(const std::string& order, bool norm_barrier, const Seconds& forward_s,
                    const Seconds& backward_s, const Seconds& d2h_s, const Seconds& host_s,
                    const Seconds& h2d_s, const Seconds& apply_s) {
  std::vector<LayerCost> layers(forward_s.size());
  for (const Seconds* times : {&backward_s, &d2h_s, &host_s, &h2d_s, &apply_s}) {
    SLUICEWAY_CHECK(times->size() == layers.size(), "predict_step: ", times->size(),
                    " times, expected one for each of ", layers.size(), " layers");
  }
  for (std::size_t i = 0; i < layers.size(); ++i) {
    layers[i] = {forward_s[i], backward_s[i], {d2h_s[i], host_s[i], h2d_s[i], apply_s[i]}};
  }
  return predict_makespan(layers, subspace_lanes::kPlan, parse_order(order),
                          norm_barrier ? NormBarrier::kExact : NormBarrier::kNone,
                          transition_layer(layers, subspace_lanes::kPlan));
}

}  // namespace

void bind_cost_model(py::module_& m) {
  m.def("predict_step", &predict_step, py::arg("order"), py::arg("norm_barrier"),
        py::arg("forward_s"), py::arg("backward_s"), py::arg("d2h_s"), py::arg("host_s"),
        py::arg("h2d_s"), py::arg("apply_s"),
        "Seconds of one steady-state step; lists hold seconds per layer, layer 0 first in the "
        "forward.");
}

}  // namespace sluiceway
