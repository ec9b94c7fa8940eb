// What a file or device can do: its properties as the system gives them, and a short measurement.
#include <pybind11/stl.h>

#include <array>
#include <limits>
#include <random>
#include <string>
#include <vector>

#include "python/bindings/bindings.h"
#include "python/bindings/gil.h"
#include "python/bindings/signal_check.h"
#include "runtime/memory/pinned_pool.h"
#include "runtime/store/drive_rate.h"
#include "runtime/store/open_io.h"

namespace sluiceway {
namespace {

py::dict as_dict(const RawIo::Properties& properties) {
  py::dict said;
  said["backend"] = std::string(properties.backend);
  said["direct"] = properties.direct;
  said["block_device"] = properties.block_device;
  said["offset_alignment"] = properties.offset_alignment;
  said["address_alignment"] = properties.address_alignment;
  said["registered_bytes"] = properties.registered_bytes;
  said["note"] = properties.note;
  return said;
}

// A drive that compresses or knows zeros is not flattered.
void fill(std::span<std::byte> bytes) {
  std::mt19937_64 random(std::random_device{}());
  const std::span words(reinterpret_cast<std::uint64_t*>(bytes.data()), bytes.size() / 8);
  for (std::uint64_t& word : words) word = random();
}

// Writes every block once before anything is measured: what was never written is read from nowhere,
// and the first write of a block is slower than the next.
std::vector<DriveRate> rates(Drive& drive, const std::vector<std::string>& mixes,
                             RateOptions options) {
  options.mix = Mix::kWrite;
  options.most_requests = options.blocks;
  options.blocks = measure_rate(drive, options).requests;
  options.most_requests = std::numeric_limits<std::uint64_t>::max();
  std::vector<DriveRate> measured;
  for (const std::string& mix : mixes) {
    options.mix = parse_mix(mix);
    measured.push_back(measure_rate(drive, options));
  }
  return measured;
}

py::dict drive_rates(const std::string& path, const std::vector<std::string>& mixes,
                     const std::string& io, std::uint64_t block_bytes, std::uint64_t blocks,
                     std::size_t depth, double seconds, bool whole_device) {
  RateOptions options{.block_bytes = block_bytes,
                      .blocks = blocks,
                      .depth = depth,
                      .longest = std::chrono::duration<double>(seconds),
                      .check = signal_check()};
  Budget budget = Budget::unlimited();
  std::vector<DriveRate> measured;
  RawIo::Properties properties;
  std::size_t huge = 0;
  {
    const GilReleased unlocked;
    const PinnedPool pool(budget, DeviceId::host(),
                          {.slab_bytes = depth * block_bytes, .pages = Pages::kHuge});
    fill(pool.slab());
    options.memory = pool.slab();
    Drive drive(open_io(path, {.io = parse_io_choice(io),
                               .depth = depth,
                               .whole_device = whole_device,
                               .memory = options.memory}));
    measured = rates(drive, mixes, options);
    properties = drive.properties();
    huge = pool.huge_bytes();
  }
  py::dict said = as_dict(properties);
  said["memory_bytes"] = depth * block_bytes;
  said["huge_bytes"] = huge;
  py::list rows;
  for (std::size_t i = 0; i < mixes.size(); ++i) {
    py::dict row;
    row["mix"] = mixes[i];
    row["bytes"] = measured[i].bytes;
    row["seconds"] = measured[i].seconds;
    row["processor_seconds"] = measured[i].processor_seconds;
    rows.append(row);
  }
  said["rates"] = rows;
  return said;
}

}  // namespace

void bind_drive(py::module_& m) {
  m.def(
      "drive_properties",
      [](const std::string& path, const std::string& io, bool writable) {
        const auto drive = open_io(path, {.io = parse_io_choice(io),
                                          .access = writable ? Access::kReadWrite : Access::kRead,
                                          .whole_device = true});
        return as_dict(drive->properties());
      },
      py::arg("path"), py::arg("io") = "auto", py::arg("writable") = false,
      "backend, direct, block_device, alignments and note of a file or device that is opened to "
      "read, or to write: a device that holds anything is then refused. Nothing is written.");
  m.def("drive_rates", &drive_rates, py::arg("path"), py::arg("mixes"), py::kw_only(),
        py::arg("io") = "auto", py::arg("block_bytes") = std::uint64_t{4} << 20,
        py::arg("blocks") = 64, py::arg("depth") = 32, py::arg("seconds") = 1.0,
        py::arg("whole_device") = false,
        "Overwrite the first blocks of a file, or of a whole device that holds nothing, then "
        "measure each mix: read, write or both.\n\n"
        "Each takes `seconds`, and so long as what is in flight then. What drive_properties() "
        "says, memory_bytes, huge_bytes of it, and rates: mix, bytes, seconds, processor_seconds.");
}

}  // namespace sluiceway
