#include <algorithm>
#include <cstdint>
#include <memory>

#include "kernels/base/checksum.h"
#include "python/bindings/bind_offload_state.h"
#include "python/bindings/dtype_name.h"
#include "python/bindings/engine_class.h"
#include "python/bindings/gil.h"
#include "python/bindings/store_calls.h"
#include "python/bindings/tensor_view.h"
#include "runtime/engine/offload/offload_engine.h"
#include "runtime/engine/offload/offload_footprint.h"
#include "runtime/engine/stream/weight_places.h"
#include "runtime/engine/subspace/weight_plan.h"

namespace sluiceway {
namespace {

void bind_tensor_spec(py::module_& m) {
  py::class_<TensorSpec>(m, "TensorSpec", "A parameter that an offload engine trains.")
      .def(py::init([](std::string name, const Tensor& weight, bool compressed, bool streamed,
                       bool resident, bool frozen, bool fp8) {
             return TensorSpec{std::move(name),
                               {weight.shape().begin(), weight.shape().end()},
                               dtype_of_tensor(weight, "weight"),
                               compressed,
                               streamed,
                               resident,
                               frozen,
                               fp8};
           }),
           py::arg("name"), py::arg("weight"), py::arg("compressed"), py::arg("streamed") = false,
           py::arg("resident") = false, py::arg("frozen") = false, py::arg("fp8") = false,
           "compressed: its gradient crosses as a core, where chunks are its own. streamed: its "
           "weight is in the store, for a forward to read; chunks must be its own. resident: it "
           "also stays on the device. frozen: it is streamed and has no states. fp8: it is frozen, "
           "and stored in 8 bits an element.");
}

CoreSpill parse_spill(const std::string& name) {
  SLUICEWAY_CHECK(name == "gradient" || name == "core", "spill: is \"", name,
                  "\", expected gradient or core");
  return name == "core" ? CoreSpill::kCore : CoreSpill::kGradient;
}

UpdatePolicy parse_policy(const std::string& name) {
  SLUICEWAY_CHECK(name == "spill" || name == "speculative", "policy: is \"", name,
                  "\", expected spill or speculative");
  return name == "spill" ? UpdatePolicy::kSpill : UpdatePolicy::kSpeculative;
}

const Keywords<CoreOptions>& core_keywords() {
  using O = CoreOptions;
  using std::string;
  static const Keywords<O> keywords(
      "CoreOptions", {
                         {"codec", [](O& o, const string& name) { o.codec.name = name; }},
                         {"ratio", [](O& o, double ratio) { o.codec.ratio = ratio; }},
                         {"d", [](O& o, std::int64_t d) { o.codec.d = d; }},
                         {"nnz", [](O& o, std::int64_t nnz) { o.codec.nnz = nnz; }},
                         {"block", [](O& o, std::int64_t block) { o.codec.block = block; }},
                         {"seed", [](O& o, std::uint64_t seed) { o.codec.seed = seed; }},
                         {"wire", [](O& o, const string& name) { o.wire = parse_wire(name); }},
                         {"redraw", &O::redraw},
                         {"spill", [](O& o, const string& name) { o.spill = parse_spill(name); }},
                     });
  return keywords;
}

void bind_core_options(py::module_& m) {
  const std::string doc = core_keywords().listed() +
                          ". redraw: steps between new projectors, 0 for never; spill: gradient or "
                          "core, whichever waits for the update.";
  py::class_<CoreOptions>(m, "CoreOptions", "How gradients of compressed tensors cross.")
      .def(py::init([](const py::kwargs& given) {
             CoreOptions options;
             core_keywords().set(options, given);
             return options;
           }),
           doc.c_str());
}

StateCodec parse_state_codec(const std::string& name) {
  for (const StateCodec codec : {StateCodec::kFp32, StateCodec::kBf16, StateCodec::k8Bit}) {
    if (name == to_string(codec)) return codec;
  }
  throw InvalidArgument(concat("state_codec: is \"", name, "\", expected fp32, bf16 or 8bit"));
}

const Keywords<OffloadOptions>& offload_keywords() {
  using O = OffloadOptions;
  using std::string;
  static const Keywords<O> keywords(
      "OffloadEngineOptions", gate_keywords<O>(),
      {
          {"gradients", [](O& o, const string& name) { o.gradient = parse_dtype(name); }},
          {"cores", &O::cores},
          {"chunk_elems", &O::chunk_elems},
          {"policy", [](O& o, const string& name) { o.policy = parse_policy(name); }},
          {"redo", &O::redo},
          {"state_codec",
           [](O& o, const string& name) { o.state_codec = parse_state_codec(name); }},
          {"seed", &O::seed},
      });
  return keywords;
}

void bind_options(py::module_& m) {
  const std::string doc = offload_keywords().listed() + ". " + kLanesDoc +
                          " drives: files or devices, none for host memory. overflow: drives are "
                          "names of files for what exceeds the host tier. rate_gbps: paces each "
                          "drive, in 1e9 bytes a second; 0: as fast as it is. drive_weights: how "
                          "fast the drives of a new store are beside one another; none: alike. "
                          "redo: a speculative step keeps its gradients, so that it can be made "
                          "again.";
  py::class_<OffloadOptions>(m, "OffloadEngineOptions",
                             "Where an offload engine keeps states, and how it throttles.")
      .def(py::init([](const StreamRef& compute, const std::vector<std::string>& drives,
                       const std::string& io, double rate_gbps, const DriveWeights& drive_weights,
                       bool overflow, const py::kwargs& given) {
             OffloadOptions options = options_on(compute, offload_keywords(), given);
             options.lanes.check_interrupt = signal_check();
             StoreOptions& store = overflow ? options.overflow : options.store;
             store = store_options(drives, io, rate_gbps, drive_weights);
             store.nameless = overflow;
             options.park_bytes = Budget::kUnlimited;
             return options;
           }),
           py::kw_only(), py::arg("compute"), py::arg("drives"), py::arg("io"),
           py::arg("rate_gbps") = 0.0, py::arg("drive_weights") = DriveWeights(),
           py::arg("overflow") = false, doc.c_str());
}

// Holds the storage, and not the tensor, which autograd may go on to use.
void add_gradient(OffloadEngine& engine, int tensor, const Tensor& gradient,
                  const StreamRef& compute) {
  const AnyMatrix g = matrix_view(gradient, "gradient");
  check_on(compute, gradient, "gradient");
  const Kept storage = gradient.storage();
  const GilReleased unlocked;
  engine.add_gradient(tensor, g, storage, compute);
}

WeightFetch::Phase phase_of(bool backward) {
  return backward ? WeightFetch::Phase::kBackward : WeightFetch::Phase::kForward;
}

std::vector<Tensor> acquire_block(OffloadEngine& engine, int block, bool backward,
                                  const StreamRef& compute) {
  std::vector<const void*> found;
  {
    const GilReleased unlocked;
    found = engine.fetch().acquire(phase_of(backward), block, compute);
  }
  std::vector<Tensor> weights;
  for (std::size_t i = 0; i < found.size(); ++i) {
    const TensorSpec& spec = engine.tensor(engine.fetch().tensors_of(block)[i]);
    weights.push_back(tensor_over(const_cast<void*>(found[i]), spec.shape, element_type(spec.dtype),
                                  compute.device()));
  }
  return weights;
}

Tensor read_weight(OffloadEngine& engine, int index) {
  const TensorSpec& spec = engine.tensor(index);
  const StoredWeight stored = engine.stored_weight(index);
  const std::uint64_t bytes = stored.bytes();
  // Direct I/O reads whole blocks to whole blocks.
  const auto room = std::make_unique_for_overwrite<std::byte[]>(bytes + kBlockBytes);
  void* start = room.get();
  std::size_t left = bytes + kBlockBytes;
  const std::span<std::byte> blocks(
      static_cast<std::byte*>(std::align(kBlockBytes, bytes, start, left)), bytes);
  const Tensor weight = empty_tensor(spec.shape, element_type(spec.dtype));
  const std::span<std::byte> into(static_cast<std::byte*>(weight.data()), weight.nbytes());
  const GilReleased unlocked;
  engine.read_weight(index, blocks);
  if (stored.is_packed()) {
    stored.unpack(0, blocks, into, StreamRef::host());
  } else {
    std::ranges::copy(blocks.first(into.size()), into.begin());
  }
  return weight;
}

// Each is (lr, beta1, beta2, eps, weight_decay).
using Hypers = std::vector<std::array<double, 5>>;

std::vector<TensorHyper> hypers_of(const Hypers& hyper) {
  std::vector<TensorHyper> hypers;
  hypers.reserve(hyper.size());
  for (const auto& h : hyper) hypers.push_back({h[0], h[1], h[2], h[3], h[4]});
  return hypers;
}

void expect(OffloadEngine& engine, const Hypers& hyper, float factor) {
  const std::vector<TensorHyper> hypers = hypers_of(hyper);
  const GilReleased unlocked;
  engine.expect(hypers, factor);
}

std::tuple<bool, double, float> step(OffloadEngine& engine, const Hypers& hyper,
                                     const std::vector<Tensor>& weights, float factor,
                                     double other_sum_squares,
                                     const std::vector<float>& own_factors, bool norm,
                                     const StreamRef& compute) {
  const std::vector<TensorHyper> hypers = hypers_of(hyper);
  const std::vector<AnyMatrix> views = views_of(weights);
  const GilReleased unlocked;
  const StepOutcome outcome =
      engine.step({hypers, views, factor, other_sum_squares, own_factors, norm, compute});
  return {outcome.skipped, outcome.grad_norm, outcome.clip_factor};
}

Stats take_stats(OffloadEngine& engine) {
  const OffloadStats stats = engine.take_stats();
  Stats result = stats_of(stats.use, stats.host_seconds);
  result["disk_read_bytes"] = stats.disk_read;
  result["disk_written_bytes"] = stats.disk_written;
  result["fetch_seconds"] = stats.fetch_seconds;
  result["store_seconds"] = stats.store_seconds;
  result["spill_seconds"] = stats.spill_seconds;
  result["decompress_seconds"] = stats.decompress_seconds;
  result["commits"] = stats.commits;
  result["commit_seconds"] = stats.commit_seconds;
  result["speculative_steps"] = stats.speculative_steps;
  result["redone_steps"] = stats.redone_steps;
  result["fallen_back_steps"] = stats.fallen_back_steps;
  return result;
}

Stats describe(const OffloadEngine& engine, int tensor) {
  const TensorSpec& spec = engine.tensor(tensor);
  Stats result;
  result["name"] = spec.name;
  result["shape"] = spec.shape;
  result["dtype"] = std::string(to_string(spec.dtype));
  result["chunks"] = engine.plan().of_tensor(tensor).size();
  result["core_rows"] = engine.core(tensor).rows;
  result["core_cols"] = engine.core(tensor).cols;
  return result;
}

py::typing::Dict<py::str, py::float_> footprint(
    const std::vector<TensorSpec>& tensors, const std::string& gradients, std::int64_t chunk_elems,
    int micro_batches, std::uint32_t slots, std::optional<std::uint64_t> in_place_limit,
    std::optional<std::uint64_t> pinned_limit, const CoreOptions& cores, const std::string& policy,
    bool on_card, const std::string& state_codec, std::uint64_t park_room) {
  const OffloadFootprint found = offload_footprint(
      tensors, {parse_dtype(gradients), chunk_elems, micro_batches, slots,
                in_place_limit.value_or(Budget::kUnlimited),
                pinned_limit.value_or(Budget::kUnlimited), cores, parse_policy(policy), park_room,
                on_card ? DeviceId::cuda(0) : DeviceId::host(), parse_state_codec(state_codec)});
  py::typing::Dict<py::str, py::float_> result;
  result["pinned_bytes"] = found.pinned_bytes;
  result["store_bytes"] = found.store_bytes;
  result["overflow_bytes"] = found.overflow_bytes;
  result["drive_share"] = found.drive_share;
  result["table_bytes"] = found.table_bytes;
  result["stored_elems"] = found.stored_elems;
  result["state_bytes"] = found.state_bytes;
  result["copied_bytes"] = found.copied_bytes;
  result["core_weights"] = found.cores.weights;
  result["core_elems"] = found.cores.elems;
  result["core_stored_elems"] = found.cores.stored_elems;
  result["core_device_bytes"] = found.cores.device_bytes;
  result["core_host_bytes"] = found.cores.host_bytes;
  result["core_d2h_bytes"] = found.cores.d2h_bytes;
  result["parked_bytes"] = found.parked_bytes;
  result["reread_bytes"] = found.reread_bytes;
  result["exit_bytes"] = found.exit_bytes;
  return result;
}

std::uint64_t bits_checksum(const Tensor& tensor) {
  check_host(tensor, "bits_checksum");
  const Tensor whole = tensor.call("contiguous");
  const GilReleased unlocked;
  return checksum64({static_cast<const std::byte*>(whole.data()), whole.nbytes()});
}

double seconds_of_element(const CoreOptions& cores, std::int64_t m, std::int64_t n,
                          const std::string& gradients) {
  const GilReleased unlocked;
  return decompress_seconds(cores.codec, m, n, parse_dtype(gradients));
}

void bind_footprints(py::module_& m) {
  m.def(
      "offload_footprint", &footprint, py::arg("tensors"), py::arg("gradients"),
      py::arg("chunk_elems"), py::arg("micro_batches"), py::arg("slots"), py::arg("in_place_limit"),
      py::arg("pinned_limit"), py::arg("cores"), py::arg("policy"), py::arg("on_card"),
      py::arg("state_codec"), py::arg("park_room"),
      "Bytes per tier of an engine for these tensors, the elements of each of its streams, and "
      "what of both is of gradients that cross compressed, without making anything; slots: copies "
      "of every state, 2, 3 with a pin, or 1 where states in host memory change in place; "
      "in_place_limit: bytes of the host tier for these, the rest on drives; on_card: the device "
      "is a CUDA device; park_room: host bytes that are left for weights that wait for the "
      "decision of a speculative step.");
  m.def(
      "choose_resident",
      [](const std::vector<std::uint64_t>& bytes, std::uint64_t room) {
        return choose_resident(bytes, room);
      },
      py::arg("bytes"), py::arg("room"),
      "Which of some weights stay on the device: as many bytes as fit, spread evenly.");
  m.def(
      "fetch_footprint",
      [](const std::vector<TensorSpec>& tensors, const std::vector<std::vector<int>>& blocks,
         int ahead, std::int64_t chunk_elems, const std::string& state_codec) {
        const auto found = WeightFetch::footprint(tensors, blocks, ahead, chunk_elems);
        const auto kept =
            kept_room(tensors, blocks, ahead, chunk_elems, parse_state_codec(state_codec));
        py::typing::Dict<py::str, py::int_> result;
        result["device_bytes"] = found.device;
        result["pinned_bytes"] = found.pinned;
        result["pass_bytes"] = found.pass;
        result["forward_bytes"] = found.forward;
        result["kept_bytes"] = kept.bytes();
        result["spared_bytes"] = kept.spares;
        return result;
      },
      py::arg("tensors"), py::arg("blocks"), py::arg("ahead"), py::arg("chunk_elems"),
      py::arg("state_codec"),
      "Bytes on the device, and of page-locked memory, that an engine's stream() takes; bytes that "
      "it fetches for a forward and its backward, and for the forward alone; host memory that "
      "keeps weights for speculative updates, and the bytes that these need not read then.");
}

void bind_streaming(EngineClass<OffloadEngine>& engine) {
  const auto unlocked = py::call_guard<GilReleased>();
  engine
      .def("stream", &OffloadEngine::stream, py::arg("blocks"), py::arg("ahead"), unlocked,
           "Once, after begin() or resume(): blocks are lists of streamed tensors.")
      .def("acquire_block", &acquire_block, py::arg("block"), py::arg("backward"),
           py::arg("compute"), "The block's weights on the device, until release_block().")
      .def(
          "release_block",
          [](OffloadEngine& e, int block, bool backward, const StreamRef& compute) {
            e.fetch().release(phase_of(backward), block, compute);
          },
          py::arg("block"), py::arg("backward"), py::arg("compute"), unlocked)
      .def("read_weight", &read_weight, py::arg("tensor"),
           "A copy of a streamed weight after the last step, in host memory.");
}

}  // namespace

void bind_offload_engine(py::module_& m) {
  bind_tensor_spec(m);
  bind_core_options(m);
  bind_options(m);
  bind_footprints(m);
  m.def("bits_checksum", &bits_checksum, py::arg("tensor"),
        "XXH3, 64 bits, of a tensor's elements: who changes one without telling autograd is seen.");
  m.def("decompress_seconds", &seconds_of_element, py::arg("cores"), py::arg("m"), py::arg("n"),
        py::arg("gradients"),
        "Measured on this machine: host seconds of one element of an m x n gradient.");
  const auto unlocked = py::call_guard<GilReleased>();
  EngineClass<OffloadEngine> engine(m, "OffloadEngine",
                                    "AdamW whose states lie in a store, on drives or in memory.");
  engine
      .def(py::init([](OffloadOptions options, std::vector<TensorSpec> tensors) {
             return EngineHolder<OffloadEngine>(
                 new OffloadEngine(std::move(options), std::move(tensors)));
           }),
           py::arg("options"), py::arg("tensors"), unlocked)
      .def("add_gradient", &add_gradient, py::arg("tensor"), py::arg("gradient"),
           py::arg("compute"),
           "A whole gradient as one row; its storage is kept until it has left the device.")
      .def(
          "end_backward",
          [](OffloadEngine& e, bool norm) { return norm_tuple(e.end_backward(norm)); },
          py::arg("norm"), unlocked, "norm: of a sum of several backwards, which are read for it.")
      .def("expect", &expect, py::arg("hyper"), py::arg("factor"),
           "With what the next step will be made, where the policy is speculative.")
      .def("step", &step, py::arg("hyper"), py::arg("weights"), py::arg("factor"),
           py::arg("other_sum_squares"), py::arg("own_factors"), py::arg("norm"),
           py::arg("compute"), "Updates come after all that `compute` was given by now.")
      .def("take_stats", &take_stats)
      .def("describe", &describe, py::arg("tensor"));
  bind_streaming(engine);
  bind_offload_state(engine);
}

}  // namespace sluiceway
