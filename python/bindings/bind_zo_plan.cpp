#include <pybind11/stl.h>
#include <pybind11/typing.h>

#include <cstdint>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "python/bindings/bindings.h"
#include "python/bindings/dtype_name.h"
#include "runtime/device/device_memory.h"
#include "runtime/engine/zo/arena_footprint.h"
#include "runtime/engine/zo/slot_plan.h"

namespace sluiceway {
namespace {

using Sizes = py::typing::Dict<py::str, py::int_>;

// Each is bytes, number of the module, and whether it is streamed.
std::pair<Sizes, std::string> ring_plan(
    const std::vector<std::tuple<std::uint64_t, int, bool>>& uses, int depth, bool reads) {
  std::vector<SlotUse> slots;
  std::uint64_t read = 0;
  for (const auto& [bytes, module, streamed] : uses) {
    SlotUse& use = slots.emplace_back();
    use.bytes = bytes;
    use.module = module;
    use.streamed = streamed;
    if (!reads || !streamed) continue;
    use.read_bytes = round_up(bytes, kBlockBytes);
    read += use.read_bytes;
  }
  const SlotPlan plan = plan_slots(slots, {depth, depth});
  Sizes sizes;
  sizes["device"] = plan.bytes;
  sizes["staging"] = plan.staging_bytes;
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
        "Bytes of the ring that (bytes, number of the module, streamed) of a forward's uses need: "
        "on the device, of staging, and read in a pass, where weights are read from a store; and a "
        "line that says so.");
  m.def("zo_arena_plan", &arena_plan, py::arg("weights"), py::arg("chunk_bytes"),
        "Bytes of a base of (name, elements, dtype), of its store with room for the next one, of "
        "the store's tables, of the buffers in which a new base is made, and of the largest "
        "weight.");
}

}  // namespace sluiceway
