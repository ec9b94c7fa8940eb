// A chunk store as Python holds it: opened by the paths of its drives, one request at a time.
#include <pybind11/stl.h>
#include <unistd.h>

#include <memory>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "kernels/base/check.h"
#include "python/bindings/buffer_bytes.h"
#include "python/bindings/gil.h"
#include "python/bindings/store_calls.h"
#include "runtime/store/blocks.h"
#include "runtime/store/store_files.h"

namespace sluiceway {
namespace {

using Paths = std::vector<std::string>;
using RegionTuple = std::tuple<std::string, std::uint64_t, std::uint64_t, std::uint32_t>;

class OpenStore {
 public:
  explicit OpenStore(std::unique_ptr<ChunkStore> store) : store_(std::move(store)) {}
  OpenStore(OpenStore&&) noexcept = default;
  // A forked child has no threads of the drives, which the destructor would wait for.
  ~OpenStore() {
    if (getpid() == opened_in_) {
      close();
    } else {
      static_cast<void>(store_.release());
    }
  }

  ChunkStore& get() {
    SLUICEWAY_CHECK(store_ != nullptr, "store: is closed, expected an open one; open it again");
    return *store_;
  }
  void close() {
    const GilReleased unlocked;
    store_.reset();
  }

 private:
  pid_t opened_in_ = getpid();
  std::unique_ptr<ChunkStore> store_;
};

OpenStore create(const Paths& paths, const std::vector<RegionTuple>& regions,
                 const py::bytes& catalogue, std::vector<std::uint32_t> weights,
                 std::uint64_t run_state_bytes, const std::string& io, bool whole_device,
                 const py::object& progress) {
  Contents contents;
  for (const auto& [kind, chunk_bytes, chunks, slots] : regions) {
    contents.regions.push_back({parse_region_kind(kind), chunk_bytes, chunks, slots});
  }
  const BufferBytes held(catalogue);
  contents.catalogue.assign(held.get().begin(), held.get().end());
  contents.run_state_bytes = run_state_bytes;
  if (weights.empty()) weights.assign(paths.size(), 1);
  const OpenOptions options{.io = parse_io_choice(io), .whole_device = whole_device};
  const ChunkStore::Progress report = reporter_of(progress);
  const GilReleased unlocked;
  Budget budget = Budget::unlimited();
  return OpenStore(create_store(budget, paths, contents, weights, options, report));
}

OpenStore open(const Paths& paths, bool writable, const std::string& io, bool whole_device) {
  const OpenOptions options{.io = parse_io_choice(io),
                            .access = writable ? Access::kReadWrite : Access::kRead,
                            // To read a device gives nothing of it away.
                            .whole_device = whole_device || !writable};
  const GilReleased unlocked;
  Budget budget = Budget::unlimited();
  return OpenStore(open_store(budget, paths, options));
}

py::dict as_dict(const Commit& commit) {
  py::dict said;
  said["generation"] = commit.generation;
  said["step"] = commit.step;
  said["run_state_bytes"] = commit.run_state.bytes;
  return said;
}

py::dict as_dict(const ChunkStore& store, std::uint32_t number) {
  const Region& region = store.layout().regions[number];
  py::dict said;
  said["kind"] = std::string(to_string(region.kind));
  said["slots"] = region.slots();
  said["chunks"] = region.chunks;
  said["chunk_bytes"] = region.chunk_bytes;
  std::uint64_t chunks = 0, bytes = 0;
  for (std::uint64_t chunk = 0; region.is_committed() && chunk < region.chunks; ++chunk) {
    const std::uint64_t written = store.written_bytes({number, chunk}, Version::kLive);
    chunks += written > 0 ? 1 : 0;
    bytes += written;
  }
  said["live_chunks"] = chunks;
  said["live_bytes"] = bytes;
  return said;
}

py::dict as_dict(const Drive& drive, const DriveShare& share) {
  const RawIo::Properties& properties = drive.properties();
  py::dict said;
  said["path"] = properties.path;
  said["bytes"] = share.bytes;
  said["size_bytes"] = drive.size_bytes();
  said["weight"] = share.weight;
  said["backend"] = std::string(properties.backend);
  said["direct"] = properties.direct;
  said["block_device"] = properties.block_device;
  said["note"] = properties.note;
  return said;
}

py::dict describe(OpenStore& opened) {
  const ChunkStore& store = opened.get();
  py::dict said;
  said["id"] = to_hex(store.id());
  said["version"] = kStoreVersion;
  said["generation"] = store.generation();
  said["live"] = as_dict(store.live());
  said["pinned"] = store.pinned() ? py::object(as_dict(*store.pinned())) : py::none();
  py::list regions, drives;
  for (std::uint32_t r = 0; r < store.layout().regions.size(); ++r) {
    regions.append(as_dict(store, r));
  }
  for (std::size_t d = 0; d < store.drives().size(); ++d) {
    drives.append(as_dict(*store.drives()[d], store.layout().drives[d]));
  }
  said["regions"] = regions;
  said["drives"] = drives;
  said["spares"] = store.layout().spares.per_drive;  // Of each drive.
  said["run_state_most_bytes"] = store.layout().run_states.bytes;
  said["catalogue_bytes"] = store.layout().catalogue.size();
  said["damage"] = store.damage();
  return said;
}

std::vector<std::string> verify(OpenStore& opened, const py::object& progress) {
  ChunkStore& store = opened.get();
  const ChunkStore::Progress report = reporter_of(progress);
  const GilReleased unlocked;
  return store.verify(report);
}

Version parse_version(const std::string& name) {
  if (name == "live") return Version::kLive;
  if (name == "pinned") return Version::kPinned;
  if (name == "staged") return Version::kStaged;
  throw_invalid_argument(
      concat("store: version is \"", name, "\", expected live, pinned or staged"));
}

py::bytes read(OpenStore& opened, std::uint32_t region, std::uint64_t chunk,
               const std::string& version) {
  ChunkStore& store = opened.get();
  const Version which = parse_version(version);
  const ChunkId id{region, chunk};
  const std::uint64_t bytes = store.written_bytes(id, which);
  Blocks blocks(bytes);
  {
    const GilReleased unlocked;
    wait_for_end(
        [&](ChunkStore::Done done) { store.read(id, which, blocks.all(), std::move(done)); });
  }
  return {reinterpret_cast<const char*>(blocks.all().data()), bytes};
}

void write(OpenStore& opened, std::uint32_t region, std::uint64_t chunk, const py::buffer& bytes) {
  ChunkStore& store = opened.get();
  const BufferBytes held(bytes);
  const GilReleased unlocked;
  Blocks blocks(held.get());
  wait_for_end([&](ChunkStore::Done done) {
    store.write({region, chunk}, blocks.all().first(held.get().size()), std::move(done));
  });
}

void commit(OpenStore& opened, std::uint64_t step, const py::buffer& run_state) {
  ChunkStore& store = opened.get();
  const BufferBytes held(run_state);
  const GilReleased unlocked;
  store.commit(step, held.get());
}

py::bytes as_py(std::span<const std::byte> bytes) {
  return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}

py::bytes run_state(OpenStore& opened, bool pinned) {
  ChunkStore& store = opened.get();
  SLUICEWAY_CHECK(!pinned || store.pinned(),
                  "store: run_state: no version is pinned; call pin() first");
  return as_py(store.run_state(pinned ? *store.pinned() : store.live()));
}

}  // namespace

void bind_store(py::module_& m) {
  const py::call_guard<GilReleased> unlocked;
  py::class_<OpenStore>(m, "ChunkStore", "Chunks on disk that change by whole steps.")
      .def_static("is_drive", &ChunkStore::is_drive, py::arg("path"), unlocked,
                  "Whether a file or device begins with the header of a drive.")
      .def("describe", &describe,
           "id, version, generation, live and pinned commit, regions, drives, spares of a drive, "
           "run_state_most_bytes, catalogue_bytes, damage of a superblock copy.")
      .def("verify", &verify, py::arg("progress") = py::none(),
           "Read all that the commits hold; what is wrong, a line each. `progress` is told chunks "
           "done and in all; Ctrl-C ends it.")
      .def("read", &read, py::arg("region"), py::arg("chunk"), py::arg("version") = "live",
           "Bytes of a chunk: live, pinned or staged.")
      .def("write", &write, py::arg("region"), py::arg("chunk"), py::arg("bytes"),
           "Stage whole blocks of 4096 bytes, from the start of a chunk, for the next commit.")
      .def("commit", &commit, py::arg("step"), py::arg("run_state") = py::bytes(),
           "Make what is staged the last commit; on the medium when it returns.")
      .def(
          "drop", [](OpenStore& s) { s.get().drop(); }, unlocked, "Forget what is staged.")
      .def(
          "pin", [](OpenStore& s) { s.get().pin(); }, unlocked,
          "Keep the last commit until another is pinned; takes regions of three slots.")
      .def(
          "unpin", [](OpenStore& s) { s.get().unpin(); }, unlocked)
      .def(
          "catalogue", [](OpenStore& s) { return as_py(s.get().layout().catalogue); },
          "What the store's user wrote about its chunks.")
      .def("run_state", &run_state, py::arg("pinned") = false, "Of the last commit, or the pinned.")
      .def("close", &OpenStore::close, "Unlock the drives; what is not committed is forgotten.");
  m.def(
      "create_store", &create, py::arg("paths"), py::arg("regions"), py::kw_only(),
      py::arg("catalogue") = py::bytes(), py::arg("weights") = std::vector<std::uint32_t>(),
      py::arg("run_state_bytes") = kRunStateBytes, py::arg("io") = "auto",
      py::arg("whole_device") = false, py::arg("progress") = py::none(),
      "Make a store on new files, or on whole devices, and open it.\n\n"
      "regions: kind (state, gradient, weights or log), bytes of a chunk, chunks, slots. weights: "
      "how fast the drives are beside one another; none: alike. progress: told bytes done and in "
      "all. After an error, and after Ctrl-C, its files are gone again.");
  m.def("open_store", &open, py::arg("paths"), py::kw_only(), py::arg("writable") = false,
        py::arg("io") = "auto", py::arg("whole_device") = false,
        "Open the last commit. Several may read a store at a time, or one may write it.");
}

}  // namespace sluiceway
