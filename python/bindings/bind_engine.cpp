// What Python asks of every engine with a step gate, but for gradients and steps.
#include <unistd.h>

#include <cstddef>
#include <utility>
#include <vector>

#include "python/bindings/engine_class.h"

namespace sluiceway {

void EngineDeleter::operator()(GatedEngine* engine) const {
  if (getpid() != opened_in) return;
  const GilReleased unlocked;
  try {
    engine->finish();
  } catch (...) {
    return;
  }
  delete engine;
}

namespace {

// Storage that a lane may still write to when nobody waits for it any more is never freed. Not by
// the tensors of Python: torch aborts where those outlive the interpreter.
void keep_for_good(const std::vector<at::Tensor>& lent) {
  auto* const kept = new std::vector<at::Tensor>;
  for (const at::Tensor& tensor : lent) kept->push_back(tensor.detach());
}

void close(GatedEngine& engine, const std::vector<at::Tensor>& lent) {
  try {
    const GilReleased unlocked;
    engine.close();
  } catch (const Timeout&) {
    if (!engine.idle()) keep_for_good(lent);
    throw;
  }
}

void finish(GatedEngine& engine, const std::vector<at::Tensor>& lent) {
  try {
    const GilReleased unlocked;
    engine.finish();
  } catch (...) {
    keep_for_good(lent);
    throw;
  }
}

std::vector<std::pair<double, float>> gradient_sizes(GatedEngine& engine) {
  std::vector<std::pair<double, float>> sizes;
  for (std::size_t i = 0; i < engine.size(); ++i) {
    const ScanResult scan = engine.gradient_scan(static_cast<int>(i));
    sizes.emplace_back(scan.sum_squares, scan.abs_max);
  }
  return sizes;
}

}  // namespace

void bind_engine(py::module_& m) {
  const auto unlocked = py::call_guard<GilReleased>();
  py::class_<GatedEngine, EngineHolder<GatedEngine>>(
      m, "GatedEngine", "An engine that gathers the gradients of a step, and then makes the step.")
      .def("__len__", &GatedEngine::size)
      .def("gradient_sizes", &gradient_sizes, unlocked,
           "Sum of squares and largest absolute element of each weight's gradient so far; after "
           "end_backward(). Neither is finite where the gradient is not.")
      .def("has_gradient", &GatedEngine::has_gradient)
      .def("drop", &GatedEngine::drop, unlocked)
      .def("wait", &GatedEngine::acquire, py::arg("weight"), py::arg("compute"), unlocked,
           "Work on `compute` that is enqueued from now on sees the last update. The thread "
           "waits: on the host device until it is made, on a CUDA device until it is enqueued.")
      .def("synchronize", &GatedEngine::synchronize, unlocked)
      .def("close", &close, py::arg("lent"),
           "Drop gathered gradients, and end the engine's work: a store has its last commit then. "
           "Timeout: a lane is stuck; the tensors that were `lent` to it are kept.")
      .def("finish", &finish, py::arg("lent"),
           "Like close(), whatever failed before; raises only where a lane still runs.")
      .def_property("committed_steps", &GatedEngine::committed_steps,
                    &GatedEngine::set_committed_steps)
      .def("note_device_times", &GatedEngine::note_device_times, py::arg("forward_s"),
           py::arg("backward_s"))
      .def_property_readonly("trace", &GatedEngine::trace,
                             "The engine's trace; it may outlive the engine.");
}

}  // namespace sluiceway
