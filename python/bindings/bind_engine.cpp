// What Python asks of every engine with a step gate, but for gradients and steps.
#include <unistd.h>

#include <cstddef>
#include <filesystem>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "python/bindings/engine_class.h"
#include "runtime/engine/stream/activations.h"
#include "runtime/store/blocks.h"
#include "runtime/store/open_io.h"

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

// Storage that a lane may still write to when nobody waits for it any more is never freed.
void keep_for_good(const std::vector<Tensor>& lent) {
  auto* const storages = new std::vector<Kept>;
  for (const Tensor& tensor : lent) storages->push_back(tensor.storage());
}

void close(GatedEngine& engine, const std::vector<Tensor>& lent) {
  try {
    const GilReleased unlocked;
    engine.close();
  } catch (const Timeout&) {
    if (!engine.idle()) keep_for_good(lent);
    throw;
  }
}

void finish(GatedEngine& engine, const std::vector<Tensor>& lent) {
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

// A forked child must not wait for threads that it does not have.
struct ActivationsDeleter {
  pid_t opened_in = getpid();
  void operator()(Activations* activations) const {
    if (getpid() != opened_in) return;
    const GilReleased unlocked;
    delete activations;
  }
};
using HeldActivations = std::unique_ptr<Activations, ActivationsDeleter>;

std::unique_ptr<Drive> nameless_drive(const std::string& folder, const std::string& io,
                                      double rate_gbps) {
  const std::string path = (std::filesystem::path(folder) / "activations.tmp").string();
  OpenOptions options;
  options.io = parse_io_choice(io);
  options.rate_gbps = rate_gbps;
  return std::make_unique<Drive>(open_nameless_io(path, options.depth * kBlockBytes, options));
}

HeldActivations make_activations(const GatedEngine& engine, const std::string& folder,
                                 const std::string& io, double rate_gbps) {
  return HeldActivations(new Activations(
      engine.lanes_beside(), folder.empty() ? nullptr : nameless_drive(folder, io, rate_gbps)));
}

// Its number goes into `ids` at once: an interrupt may end the caller before it has a result.
void keep(Activations& activations, const Tensor& tensor, const StreamRef& compute,
          py::typing::List<int> ids) {
  check_on(compute, tensor, "activation");
  const void* const from = tensor.data();
  int id = 0;
  {
    const GilReleased unlocked;
    id = activations.keep(from, tensor.nbytes(), compute);
  }
  ids.append(id);
}

bool forget(Activations& activations, py::typing::List<int> ids) {
  if (ids.empty()) return true;
  if (!activations.forget(ids[0].cast<int>())) return false;
  ids.attr("clear")();
  return true;
}

py::dict take_use(Activations& activations) {
  const Drive::Counters counters = activations.counters();
  py::dict use;
  use["stall_seconds"] = activations.take_stall_seconds();
  use["bytes_read"] = counters.bytes_read;
  use["bytes_written"] = counters.bytes_written;
  return use;
}

void bring(Activations& activations, int id, const Tensor& into, const StreamRef& compute) {
  check_on(compute, into, "activation");
  void* const to = into.data();
  const GilReleased unlocked;
  activations.bring(id, to, compute);
}

void bind_activations(py::module_& m) {
  const auto unlocked = py::call_guard<GilReleased>();
  py::class_<Activations, HeldActivations>(
      m, "Activations",
      "Tensors of a forward that wait for its backward in host memory or on a drive.")
      .def("keep", &keep, py::arg("tensor"), py::arg("compute"), py::arg("ids"),
           "Copy a dense tensor from the device, and append its number. Keep the tensor until "
           "has_left().")
      .def("has_left", &Activations::has_left, py::arg("id"))
      .def("wait_left", &Activations::wait_left, py::arg("id"), unlocked)
      .def("bring", &bring, py::arg("id"), py::arg("into"), py::arg("compute"),
           "Begin to copy it back. Keep `into` until await_() has returned, or forget() True.")
      .def("await_", &Activations::await, py::arg("id"), py::arg("compute"), unlocked,
           "Work on `compute` that is enqueued from now on sees it.")
      .def("forget", &forget, py::arg("ids"),
           "Free the place of the one number in the list, and clear the list. False, and nothing "
           "is done, while a copy is running.")
      .def("waiting", &Activations::waiting, "The number of tensors that are not forgotten.")
      .def("take_use", &take_use,
           "stall_seconds for which the device has waited for tensors since the last call; "
           "bytes_read and bytes_written of the drive since it was opened.");
}

}  // namespace

void bind_engine(py::module_& m) {
  bind_activations(m);
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
      .def("make_activations", &make_activations, py::arg("folder") = "", py::arg("io") = "auto",
           py::arg("rate_gbps") = 0.0,
           "Places that share the engine's links and budget; without a folder in host memory. "
           "They may outlive the engine.")
      .def("note_device_times", &GatedEngine::note_device_times, py::arg("forward_s"),
           py::arg("backward_s"))
      .def_property_readonly("trace", &GatedEngine::trace,
                             "The engine's trace; it may outlive the engine.");
}

}  // namespace sluiceway
