// compress/codec_families.h
#include <pybind11/stl.h>

#include "compress/codec_families.h"
#include "python/bindings/bindings.h"

namespace sluiceway {

void bind_codec_families(py::module_& m) {
  py::class_<CodecFamily>(m, "CodecFamily", "One codec: a row of the table that C++ keeps.")
      .def_readonly("name", &CodecFamily::name)
      .def_readonly("offered", &CodecFamily::offered, "False for a baseline of the experiments.")
      .def_readonly("learns", &CodecFamily::learns, "Whether a refresh may change its projectors.")
      .def_readonly("refresh_every", &CodecFamily::refresh_every,
                    "Steps between two refreshes where nobody says otherwise; 0: never.")
      .def_readonly("has_square_core", &CodecFamily::has_square_core, "Whether it takes `d`.")
      .def("leaves_complement", &CodecFamily::leaves_complement, py::arg("nnz"),
           "Whether what it leaves of a gradient holds nothing of the core.");
  m.def("codec_families", &codec_families, py::return_value_policy::reference,
        "All codecs, in the order in which errors name them; \"auto\" is none.");
}

}  // namespace sluiceway
