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
#include "runtime/store/store_files.h"

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

std::unique_ptr<ChunkStore> in_memory(Budget& budget, const StoreOptions& options,
                                      const Layout& layout) {
  ChunkStore::Drives drives;
  drives.push_back(
      std::make_unique<Drive>(open_memory_io(budget, layout.drives.front().bytes, "host memory")));
  return ChunkStore::create(budget, std::move(drives), layout, options.progress);
}

std::unique_ptr<ChunkStore> on_drives(Budget& budget, const StoreOptions& options,
                                      const Contents& contents, std::span<std::byte> memory) {
  OpenOptions open;
  open.io = options.io;
  open.depth = kDriveDepth;
  open.whole_device = options.whole_device;
  open.memory = memory;
  if (exists(options)) return open_store(budget, options.drives, open);
  std::vector<std::uint32_t> weights = options.weights;
  weights.resize(options.drives.size(), 1);
  return create_store(budget, options.drives, contents, weights, open, options.progress);
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
  OpenedStore opened;
  if (options.opener) {
    opened.store = options.opener(budget, contents, memory);
  } else if (options.drives.empty()) {
    opened.store = in_memory(budget, options, new_layout(contents, {1}));
  } else {
    opened.store = on_drives(budget, options, contents, memory);
  }
  const ChunkStore& store = *opened.store;
  check_catalogue(store, catalogue, store.drives().front()->properties().path);
  opened.is_new = store.written_bytes({StateStream::kStateRegion, 0}, Version::kLive) == 0;
  return opened;
}

}  // namespace sluiceway
