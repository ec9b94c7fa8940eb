#include <array>
#include <cstring>
#include <memory>
#include <optional>
#include <tuple>

#include "kernels/base/checksum.h"
#include "python/bindings/engine_class.h"
#include "python/bindings/gil.h"
#include "python/bindings/held_arena.h"
#include "python/bindings/store_calls.h"
#include "python/bindings/tensor_view.h"
#include "runtime/store/blocks.h"

namespace sluiceway {
namespace {

// Name, a tensor of its shape and type, parameter group.
using Weight = std::tuple<std::string, Tensor, int>;

std::vector<ArenaWeight> weights_of(const std::vector<Weight>& given) {
  std::vector<ArenaWeight> weights;
  for (const auto& [name, like, group] : given) {
    weights.push_back({name, like.numel(), dtype_of_tensor(like, name.c_str()), group});
  }
  return weights;
}

ArenaOptions options_of(const std::vector<std::string>& drives, const std::string& io,
                        double rate_gbps, std::uint64_t chunk_bytes, int threads,
                        const DriveWeights& weights = {}) {
  ArenaOptions options;
  options.store = store_options(drives, io, rate_gbps, weights);
  options.chunk_bytes = chunk_bytes;
  options.threads = threads;
  return options;
}

std::optional<HeldArenaPtr> open(const std::vector<Weight>& weights,
                                 const std::vector<std::string>& drives, const std::string& io,
                                 double rate_gbps, std::uint64_t chunk_bytes, int threads,
                                 const LimitOfTier& limits) {
  const HeldArenaPtr held = hold_arena(limits_of(limits));
  const ArenaOptions options = options_of(drives, io, rate_gbps, chunk_bytes, threads);
  const GilReleased unlocked;
  held->arena = ZoArena::open(held->budget, options, weights_of(weights));
  if (held->arena == nullptr) return std::nullopt;
  return held;
}

// One weight at a time; the one before has gone when the next is asked for.
class Tensors {
 public:
  Tensors(const py::function& tensor_of, const std::vector<ArenaWeight>& weights)
      : tensor_of_(tensor_of), weights_(weights), weight_(weights.size()) {}

  void fill(std::size_t weight, std::uint64_t first, std::span<std::byte> into) {
    if (weight_ != weight) next(weight);
    std::memcpy(into.data(), static_cast<const std::byte*>(tensor_.data()) + first, into.size());
  }

 private:
  void next(std::size_t weight) {
    const GilHeld locked;
    const ArenaWeight& expected = weights_[weight];
    const char* const name = expected.name.c_str();
    tensor_ = Tensor();
    const auto tensor = tensor_of_(weight).cast<Tensor>();
    check_host(tensor, name);
    SLUICEWAY_CHECK(tensor.is_contiguous() && tensor.numel() == expected.elements &&
                        dtype_of_tensor(tensor, name) == expected.dtype,
                    name, ": is ", tensor.numel(), " elements of ", tensor.type_name(),
                    ", expected ", expected.elements, " contiguous ones of ",
                    to_string(expected.dtype));
    tensor_ = tensor.call("detach");
    weight_ = weight;
  }

  const py::function& tensor_of_;
  const std::vector<ArenaWeight>& weights_;
  std::size_t weight_;  // Of tensor_.
  Tensor tensor_;
};

HeldArenaPtr create(const std::vector<Weight>& weights, const py::function& tensor_of,
                    const std::vector<std::string>& drives, const std::string& io, double rate_gbps,
                    std::uint64_t chunk_bytes, int threads, const LimitOfTier& limits,
                    const py::object& progress, const DriveWeights& drive_weights) {
  const HeldArenaPtr held = hold_arena(limits_of(limits));
  const ArenaOptions options =
      options_of(drives, io, rate_gbps, chunk_bytes, threads, drive_weights);
  const std::vector<ArenaWeight> all = weights_of(weights);
  const ZoArena::Progress report = reporter_of(progress);
  Tensors tensors(tensor_of, all);
  const GilReleased unlocked;  // What is of Python is neither copied nor destroyed without it.
  held->arena = ZoArena::create(
      held->budget, options, all,
      [&](std::size_t weight, std::uint64_t first, std::span<std::byte> into) {
        tensors.fill(weight, first, into);
      },
      {}, [&](std::uint64_t done, std::uint64_t bytes) { report(done, bytes); });
  return held;
}

Tensor read(HeldArena& held, std::size_t weight) {
  ZoArena& arena = *held.arena;
  SLUICEWAY_CHECK(weight < arena.weights().size(), "arena: weight ", weight,
                  " does not exist, expected 0 to ", arena.weights().size() - 1);
  const std::uint64_t bytes = arena.read_bytes(weight);
  const std::shared_ptr<std::byte[]> memory(new std::byte[bytes + kBlockBytes]);
  void* start = memory.get();
  std::size_t room = bytes + kBlockBytes;
  auto* const begin = static_cast<std::byte*>(std::align(kBlockBytes, bytes, start, room));
  {
    const GilReleased unlocked;
    wait_for_end([&](ZoArena::Done done) { arena.read(weight, {begin, bytes}, std::move(done)); });
  }
  const std::array shape{static_cast<std::int64_t>(arena.weights()[weight].bytes())};
  return tensor_over(begin, shape, ElementType::kUInt8, DeviceId::host(), memory);
}

// Hash, generation, step, and the id of the log that it was made with.
std::tuple<std::string, std::uint64_t, std::uint64_t, std::string> base(const HeldArena& held) {
  const ArenaBase& is = held.arena->base();
  return {to_hex(is.base.hash), is.base.generation, is.base.step, to_hex(is.made_with)};
}

py::bytes run_state(const HeldArena& held) {
  const std::vector<std::byte>& state = held.arena->run_state();
  return {reinterpret_cast<const char*>(state.data()), state.size()};
}

std::uint64_t written_bytes(const HeldArena& held) {
  std::uint64_t bytes = 0;
  for (const auto& drive : held.arena->store().drives()) bytes += drive->counters().bytes_written;
  return bytes;
}

}  // namespace

void bind_zo_arena(py::module_& m) {
  py::class_<HeldArena, HeldArenaPtr> arena(
      m, "ZoArena", "The base of a zeroth-order run in a store: weights that a step only reads.");
  arena
      .def_static("open", &open, py::arg("weights"), py::kw_only(), py::arg("drives"),
                  py::arg("io"), py::arg("rate_gbps"), py::arg("chunk_bytes"), py::arg("threads"),
                  py::arg("limits"),
                  "Each weight is name, a tensor like it, parameter group. drives: files or "
                  "devices, none for host memory. rate_gbps: paces each drive, in 1e9 bytes a "
                  "second; 0: as fast as it is. None: there is no base yet.")
      .def_static("create", &create, py::arg("weights"), py::arg("tensor_of"), py::kw_only(),
                  py::arg("drives"), py::arg("io"), py::arg("rate_gbps"), py::arg("chunk_bytes"),
                  py::arg("threads"), py::arg("limits"), py::arg("progress") = py::none(),
                  py::arg("drive_weights") = DriveWeights(),
                  "Make a base from the tensor that `tensor_of` returns for the number of a "
                  "weight, called when the weight before was copied. progress: called with bytes "
                  "done and in all. "
                  "drive_weights: how fast the drives are beside one another; none: alike.")
      .def("read", &read, py::arg("weight"), "Read the base of a weight as bytes.")
      .def_property_readonly("base", &base,
                             "Hash, generation and step of the base, and the id of its log.")
      .def_property_readonly("run_state", &run_state, "The bytes that the base carries.")
      .def_property_readonly("written_bytes", &written_bytes,
                             "Bytes that this process has written.")
      .def_property_readonly("peak_bytes",
                             [](const HeldArena& held) {
                               Budget::Limits peaks;
                               for (std::size_t tier = 0; tier < kTierCount; ++tier) {
                                 peaks[tier] = held.budget.peak(static_cast<Tier>(tier));
                               }
                               return Stats(by_tier(peaks));
                             })
      .def_property_readonly(
          "drives", [](const HeldArena& held) { return drives_of(held.arena->store()); },
          "path, backend, direct and note of each.");
}

}  // namespace sluiceway
