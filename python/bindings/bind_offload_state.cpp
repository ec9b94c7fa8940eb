#include "python/bindings/bind_offload_state.h"

#include <string_view>

#include "python/bindings/gil.h"
#include "python/bindings/store_calls.h"
#include "python/bindings/tensor_view.h"

namespace sluiceway {
namespace {

constexpr const char* kStateKeys[] = {"exp_avg", "exp_avg_sq", "master"};

using StateTensors = std::array<Tensor, kStateStreams>;

TensorState state_of(const OffloadEngine& engine, int tensor, const StateTensors& tensors) {
  for (std::size_t i = 0; i < tensors.size(); ++i) {
    SLUICEWAY_CHECK(tensors[i].numel() == engine.tensor(tensor).elems(), kStateKeys[i], " of ",
                    engine.tensor(tensor).name, " has ", tensors[i].numel(), " elements, expected ",
                    engine.tensor(tensor).elems());
  }
  return {f32_span(tensors[0], kStateKeys[0]), f32_span(tensors[1], kStateKeys[1]),
          f32_span(tensors[2], kStateKeys[2])};
}

void read_tensor_state(OffloadEngine& engine, int tensor, const Tensor& exp_avg,
                       const Tensor& exp_avg_sq, const Tensor& master) {
  const TensorState state = state_of(engine, tensor, {exp_avg, exp_avg_sq, master});
  const GilReleased unlocked;
  engine.read_state(tensor, state);
}

Stats tensor_state(OffloadEngine& engine, int tensor) {
  const auto room = [&] {
    return empty_tensor(engine.tensor(tensor).shape, ElementType::kFloat32);
  };
  const StateTensors tensors{room(), room(), room()};
  read_tensor_state(engine, tensor, tensors[0], tensors[1], tensors[2]);
  Stats state;
  state["step"] = engine.tensor_steps(tensor);
  for (std::size_t i = 0; i < tensors.size(); ++i) state[kStateKeys[i]] = tensors[i];
  return state;
}

void load_tensor_state(OffloadEngine& engine, int tensor, const Tensor& exp_avg,
                       const Tensor& exp_avg_sq, const Tensor& master, std::int64_t step) {
  const TensorState state = state_of(engine, tensor, {exp_avg, exp_avg_sq, master});
  const GilReleased unlocked;
  engine.write_state(tensor, state, step);
}

void begin(OffloadEngine& engine, const std::vector<Tensor>& weights, const StreamRef& compute,
           const std::optional<py::typing::Callable<Tensor(int)>>& streamed) {
  const std::vector<AnyMatrix> views = views_of(weights);
  Tensor held;
  const auto weight_of = [&](int index) {
    const GilHeld locked;
    const py::object weight = (*streamed)(index);
    held = weight.attr("reshape")(1, -1).cast<Tensor>();
    check_host(held, "a streamed weight");
    return matrix_view(held, "a streamed weight");
  };
  const GilReleased unlocked;
  engine.begin(views, compute, streamed ? OffloadEngine::HostWeight(weight_of) : nullptr);
}

void set_run_state(OffloadEngine& engine, std::string_view state) {
  engine.set_run_state(std::as_bytes(std::span(state)));
}

py::bytes run_state(OffloadEngine& engine) {
  const std::vector<std::byte> state = engine.run_state();
  return {reinterpret_cast<const char*>(state.data()), state.size()};
}

// Of the last commit and of the pinned one.
std::vector<std::pair<std::uint64_t, std::uint64_t>> generations(const OffloadEngine& engine) {
  const ChunkStore& store = engine.store();
  std::vector<std::pair<std::uint64_t, std::uint64_t>> found;
  found.emplace_back(store.live().generation, store.live().step);
  if (store.pinned()) found.emplace_back(store.pinned()->generation, store.pinned()->step);
  return found;
}

}  // namespace

void bind_offload_state(EngineClass<OffloadEngine>& engine) {
  const auto unlocked = py::call_guard<GilReleased>();
  engine.def_property_readonly("is_new", &OffloadEngine::is_new)
      .def_property_readonly("store_id",
                             [](const OffloadEngine& e) { return to_hex(e.store().id()); })
      .def_property_readonly(
          "drives",
          [](const OffloadEngine& e) {
            return drives_of(e.overflow() ? *e.overflow() : e.store());
          },
          "path, backend, direct and note of each.")
      .def_property_readonly("generations", &generations,
                             "Generation and step of the last commit, and of a pinned one.")
      .def("begin", &begin, py::arg("weights"), py::arg("compute"), py::arg("streamed"),
           "Zero moments, and masters that are the weights: step 0. streamed(number) gives the "
           "weight of a streamed tensor on the host; of these, `weights` may be empty.")
      .def(
          "resume",
          [](OffloadEngine& e, const std::vector<Tensor>& weights, const StreamRef& compute) {
            const std::vector<AnyMatrix> views = views_of(weights);
            const GilReleased free;
            e.resume(views, compute);
          },
          py::arg("weights"), py::arg("compute"),
          "The weights become what the masters of the last commit say.")
      .def("commit", &OffloadEngine::commit, unlocked)
      .def("pin", &OffloadEngine::pin, unlocked, "Commit, for good until the next pin.")
      .def("roll_back", &OffloadEngine::roll_back, py::arg("generation"), unlocked)
      .def("set_run_state", &set_run_state, py::arg("state"))
      .def("leave_uncommitted", &OffloadEngine::leave_uncommitted,
           "From now on close() leaves the store at its last commit.")
      .def("run_state", &run_state)
      .def("tensor_steps", &OffloadEngine::tensor_steps, py::arg("tensor"))
      .def("tensor_state", &tensor_state, py::arg("tensor"),
           "step, exp_avg, exp_avg_sq, master: all copies, the last three float32.")
      .def("read_tensor_state", &read_tensor_state, py::arg("tensor"), py::arg("exp_avg"),
           py::arg("exp_avg_sq"), py::arg("master"), "Fill float32 tensors as tensor_state does.")
      .def("load_tensor_state", &load_tensor_state, py::arg("tensor"), py::arg("exp_avg"),
           py::arg("exp_avg_sq"), py::arg("master"), py::arg("step"),
           "Take over what tensor_state gave; the next commit makes it durable.");
}

}  // namespace sluiceway
