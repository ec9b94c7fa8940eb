#include "runtime/engine/offload/state_store.h"

#include <algorithm>
#include <filesystem>
#include <functional>
#include <nlohmann/json.hpp>
#include <numeric>
#include <system_error>
#include <utility>

#include "kernels/base/check.h"
#include "runtime/engine/offload/offload_footprint.h"
#include "runtime/engine/offload/state_stream.h"
#include "runtime/store/memory_io.h"

namespace sluiceway {
namespace {

using Json = nlohmann::ordered_json;

// Requests of one drive at once: the streams of all chunks that are on their way to or from it.
constexpr std::size_t kDriveDepth = 64;

Json catalogue_of(std::span<const TensorSpec> tensors, const ChunkPlan& plan, DType gradient) {
  Json rows = Json::array();
  for (const TensorSpec& tensor : tensors) {
    rows.push_back({tensor.name, tensor.shape, to_string(tensor.dtype)});
  }
  return {{"format", 1},
          {"engine", "offload"},
          {"chunk_elems", plan.chunk_elems()},
          {"gradient", to_string(gradient)},
          {"tensors", std::move(rows)}};
}

std::vector<std::byte> bytes_of(const Json& json) {
  const std::string text = json.dump();
  const auto bytes = std::as_bytes(std::span(text));
  return {bytes.begin(), bytes.end()};
}

std::string shown(const Json& tensor) {
  return concat(tensor.at(0).get<std::string>(), " ", tensor.at(1).dump(), " ",
                tensor.at(2).get<std::string>());
}

// What differs first; both are catalogues of this format.
std::string difference(const Json& found, const Json& expected) {
  for (const char* const key : {"chunk_elems", "gradient"}) {
    if (found.at(key) != expected.at(key)) {
      return concat(key, " is ", found.at(key).dump(), ", expected ", expected.at(key).dump());
    }
  }
  const Json& theirs = found.at("tensors");
  const Json& ours = expected.at("tensors");
  for (std::size_t i = 0; i < std::min(theirs.size(), ours.size()); ++i) {
    if (theirs[i] != ours[i]) {
      return concat("tensor ", i, " is ", shown(theirs[i]), ", expected ", shown(ours[i]));
    }
  }
  return concat("it has ", theirs.size(), " tensors, expected ", ours.size());
}

void check_catalogue(const ChunkStore& store, const Json& expected, const std::string& where) {
  const std::vector<std::byte>& bytes = store.layout().catalogue;
  const Json found =
      Json::parse(reinterpret_cast<const char*>(bytes.data()),
                  reinterpret_cast<const char*>(bytes.data()) + bytes.size(), nullptr, false);
  SLUICEWAY_CHECK(
      found.is_object() && found.value("engine", "") == "offload" && found.value("format", 0) == 1,
      "store at ", where,
      ": is of another engine, or of another version, expected "
      "states of AdamW; choose another path");
  if (found == expected) return;
  throw InvalidArgument(concat("store at ", where,
                               ": holds the states of another run: ", difference(found, expected),
                               "; choose another path, or the model and the options it was made "
                               "with"));
}

std::unique_ptr<Drive> opened(const std::string& path, const StoreOptions& options,
                              std::span<std::byte> memory) {
  OpenOptions open;
  open.io = options.io;
  open.depth = kDriveDepth;
  open.whole_device = options.whole_device;
  open.memory = memory;
  return std::make_unique<Drive>(open_io(path, open));
}

ChunkStore::Drives opened(const StoreOptions& options, std::span<std::byte> memory) {
  ChunkStore::Drives drives;
  for (const std::string& path : options.drives) drives.push_back(opened(path, options, memory));
  return drives;
}

// Files are made; a device is opened as it is. What was made goes again if the store cannot be.
class NewDrives {
 public:
  NewDrives(const StoreOptions& options, const Layout& layout) {
    try {
      for (std::size_t d = 0; d < options.drives.size(); ++d) {
        if (std::filesystem::is_block_file(options.drives[d])) continue;
        create_drive_file(options.drives[d], layout.drives[d].bytes);
        made_.push_back(options.drives[d]);
      }
    } catch (...) {
      remove();
      throw;
    }
  }
  NewDrives(const NewDrives&) = delete;
  NewDrives& operator=(const NewDrives&) = delete;
  ~NewDrives() { remove(); }
  void keep() { made_.clear(); }

 private:
  void remove() noexcept {
    for (const std::string& path : made_) {
      std::error_code ignored;
      std::filesystem::remove(path, ignored);
    }
    made_.clear();
  }
  std::vector<std::string> made_;
};

// A device holds a store if it begins as one; a file if it is there.
bool exists(const StoreOptions& options) {
  const auto there = [](const std::string& path) {
    if (!std::filesystem::exists(path)) return false;
    if (!std::filesystem::is_block_file(path)) return true;
    return ChunkStore::is_drive(path);
  };
  const auto count = std::ranges::count_if(options.drives, there);
  SLUICEWAY_CHECK(count == 0 || count == std::ssize(options.drives), "store: ", count, " of ",
                  options.drives.size(),
                  " drives are there, expected all of a store or none; bring the others back, or "
                  "choose another path");
  return count > 0;
}

std::unique_ptr<ChunkStore> open_or_make(Budget& budget, const StoreOptions& options,
                                         const Contents& contents, std::span<std::byte> memory) {
  if (!options.drives.empty() && exists(options)) {
    return ChunkStore::open(budget, opened(options, memory));
  }
  std::vector<std::uint32_t> weights = options.weights;
  weights.resize(std::max<std::size_t>(options.drives.size(), 1), 1);
  const Layout layout = new_layout(contents, weights);
  if (options.drives.empty()) {
    ChunkStore::Drives drives;
    drives.push_back(std::make_unique<Drive>(
        open_memory_io(budget, layout.drives.front().bytes, "host memory")));
    return ChunkStore::create(budget, std::move(drives), layout, options.progress);
  }
  NewDrives files(options, layout);
  auto store = ChunkStore::create(budget, opened(options, memory), layout, options.progress);
  files.keep();
  return store;
}

}  // namespace

std::int64_t TensorSpec::elems() const noexcept {
  return std::accumulate(shape.begin(), shape.end(), std::int64_t{1}, std::multiplies());
}

OpenedStore open_state_store(Budget& budget, const StoreOptions& options,
                             std::span<const TensorSpec> tensors, const ChunkPlan& plan,
                             DType gradient, std::uint32_t micro_batches,
                             std::span<std::byte> memory) {
  const Json catalogue = catalogue_of(tensors, plan, gradient);
  Contents contents;
  contents.regions = StateStream::regions(plan, gradient, kStateSlots, micro_batches);
  contents.catalogue = bytes_of(catalogue);
  auto store = options.opener ? options.opener(budget, contents, memory)
                              : open_or_make(budget, options, contents, memory);
  check_catalogue(*store, catalogue, store->drives().front()->properties().path);
  const bool is_new = store->written_bytes({StateStream::kStateRegion, 0}, Version::kLive) == 0;
  return {std::move(store), is_new};
}

}  // namespace sluiceway
