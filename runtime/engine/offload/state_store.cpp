#include "runtime/engine/offload/state_store.h"

#include <functional>
#include <nlohmann/json.hpp>
#include <numeric>
#include <utility>

#include "runtime/engine/offload/offload_footprint.h"
#include "runtime/engine/offload/state_stream.h"
#include "runtime/store/store_catalogue.h"

namespace sluiceway {
namespace {

using Json = nlohmann::ordered_json;

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

}  // namespace

std::int64_t TensorSpec::elems() const noexcept {
  return std::accumulate(shape.begin(), shape.end(), std::int64_t{1}, std::multiplies());
}

OpenedStore open_state_store(Budget& budget, const StoreOptions& options,
                             std::span<const TensorSpec> tensors, const ChunkPlan& plan,
                             DType gradient, Contents contents, std::span<std::byte> memory) {
  const Json catalogue = catalogue_of(tensors, plan, gradient);
  contents.catalogue = catalogue_bytes(catalogue);
  OpenedStore opened;
  opened.store = open_or_create(budget, options, contents, memory);
  const ChunkStore& store = *opened.store;
  check_catalogue(store, catalogue, "states of AdamW");
  opened.is_new = store.written_bytes({StateStream::kStateRegion, 0}, Version::kLive) == 0;
  return opened;
}

}  // namespace sluiceway
