#include <pybind11/stl.h>
#include <pybind11/typing.h>

#include <cstdint>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "python/bindings/bindings.h"
#include "python/bindings/dtype_name.h"
#include "runtime/engine/stream/slot_plan.h"
#include "runtime/engine/zo/arena_plan.h"
#include "runtime/engine/zo/zo_arena.h"

namespace sluiceway {
namespace {

using Sizes = py::typing::Dict<py::str, py::int_>;

// Each is bytes of a copy, number of the module, and whether it is streamed.
std::pair<Sizes, std::string> ring_plan(
    const std::vector<std::tuple<std::uint64_t, int, bool>>& uses, int depth, bool reads,
    const std::string& dtype, const std::string& held, const std::string& wire, bool goes_back) {
  const std::uint64_t width = size_bytes(parse_dtype(dtype));
  const WeightForm stays = parse_form(held), moves = wire.empty() ? stays : parse_form(wire);
  std::vector<SlotUse> slots;
  std::uint64_t arrived = 0, read = 0;
  for (const auto& [bytes, module, streamed] : uses) {
    SlotUse& use = slots.emplace_back();
    use.bytes = (streamed ? moves : stays).bytes(bytes / width);
    use.copy_bytes = bytes;
    use.module = module;
    use.streamed = streamed;
    if (streamed) arrived += use.bytes;
    if (!reads || !streamed) continue;
    use.read_bytes = whole_blocks(use.bytes);
    read += use.read_bytes;
  }
  const SlotPlan plan = plan_slots(slots, ring_depth(depth, goes_back));
  Sizes sizes;
  sizes["device"] = plan.bytes;
  sizes["staging"] = plan.staging_bytes;
  sizes["arriving"] = arrived;
  sizes["read"] = read;
  return {sizes, to_string(plan)};
}

// Each is a name, elements and a type.
Sizes arena_plan(const std::vector<std::tuple<std::string, std::int64_t, std::string>>& weights,
                 std::uint64_t chunk_bytes) {
  std::vector<ArenaWeight> all;
  for (const auto& [name, elements, dtype] : weights) {
    all.push_back({name, elements, parse_dtype(dtype), 0});
  }
  const ArenaFootprint found = arena_footprint(std::move(all), chunk_bytes);
  Sizes sizes;
  sizes["base"] = found.base_bytes;
  sizes["store"] = found.store_bytes;
  sizes["tables"] = found.table_bytes;
  sizes["pass"] = found.pass_bytes;
  sizes["largest"] = found.largest_bytes;
  return sizes;
}

}  // namespace

void bind_zo_plan(py::module_& m) {
  m.def("zo_ring_plan", &ring_plan, py::arg("uses"), py::arg("depth"), py::arg("reads"),
        py::arg("dtype"), py::arg("held"), py::arg("wire") = "", py::arg("goes_back") = false,
        "Bytes of the ring that (bytes, number of the module, streamed) of a forward's uses need: "
        "on the device, of staging, arriving in a pass, and read in it, where weights are read; "
        "and a line that says so. dtype: of a copy; held: type of the weights themselves; wire: "
        "that in which they cross, or fp8, for images of them, empty: as they are; goes_back: they "
        "go back to host memory.");
  m.def("zo_arena_plan", &arena_plan, py::arg("weights"), py::arg("chunk_bytes"),
        "Bytes of a base of (name, elements, dtype), of its store with room for the next one, of "
        "the store's tables, of the buffers in which a new base is made, and of the largest "
        "weight.");
}

}  // namespace sluiceway
