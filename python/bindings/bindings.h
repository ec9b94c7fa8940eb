// The bind_<header>() functions of this module; each takes the module and adds to it.
//
// Whoever takes tensors includes tensor_view.h.
#pragma once

#include <pybind11/pybind11.h>

namespace sluiceway {

namespace py = pybind11;

void bind_errors(py::module_& m);
void bind_adam(py::module_& m);
void bind_checksum(py::module_& m);
void bind_codec(py::module_& m);
void bind_codec_families(py::module_& m);
void bind_cost_model(py::module_& m);
void bind_denormals(py::module_& m);
void bind_device(py::module_& m);
void bind_drive(py::module_& m);
void bind_loss_scale(py::module_& m);
void bind_low_rank(py::module_& m);
void bind_noise(py::module_& m);
void bind_offload_engine(py::module_& m);
void bind_store(py::module_& m);
void bind_subspace_engine(py::module_& m);
void bind_trace(py::module_& m);
void bind_engine(py::module_& m);
void bind_warning(py::module_& m);
void bind_weight_plan(py::module_& m);
void bind_zo_arena(py::module_& m);
void bind_zo_engine(py::module_& m);
void bind_zo_plan(py::module_& m);

}  // namespace sluiceway
