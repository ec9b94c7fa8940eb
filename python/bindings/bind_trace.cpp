#include <memory>
#include <string>

#include "python/bindings/bindings.h"
#include "python/bindings/gil.h"
#include "runtime/trace/trace.h"

namespace sluiceway {

void bind_trace(py::module_& m) {
  m.def("now_us", &now_us, "Microseconds of the trace's clock.");
  py::class_<Trace, std::shared_ptr<Trace>>(m, "Trace", "Named ranges of a run.")
      .def(py::init([](std::size_t max_ranges) {
             auto trace = std::make_shared<Trace>(max_ranges);
             trace->enable(true);
             return trace;
           }),
           py::arg("max_ranges"), "Further ranges are counted, and the file has the count.")
      .def(
          "enable",
          [](Trace& trace, bool on, const std::string& path) {
            if (on && !path.empty()) trace.spill_beside(path);
            trace.enable(on);
          },
          py::arg("on"), py::arg("path") = "",
          "Keep further ranges or not. With the path that write_json() will get, they are kept on "
          "that disk.")
      .def(
          "add_range",
          [](Trace& trace, const std::string& row, const std::string& name, double begin_us,
             double end_us) { trace.add_range(trace.add_row(row), name, begin_us, end_us); },
          py::arg("row"), py::arg("name"), py::arg("begin_us"), py::arg("end_us"))
      .def("write_json", &Trace::write_json, py::arg("path"), py::call_guard<GilReleased>(),
           "Chrome trace format.");
}

}  // namespace sluiceway
