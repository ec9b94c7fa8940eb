#include "runtime/engine/offload/state_store.h"

#include <functional>
#include <nlohmann/json.hpp>
#include <numeric>
#include <utility>

#include "runtime/engine/offload/offload_footprint.h"
#include "runtime/store/store_catalogue.h"

namespace sluiceway {
namespace {

using Json = nlohmann::ordered_json;

Json catalogue_of(std::span<const TensorSpec> tensors, const ChunkPlan& plan,
                  const StateStream::Types& types) {
  Json rows = Json::array();
  for (const TensorSpec& tensor : tensors) {
    rows.push_back({tensor.name, tensor.shape, to_string(tensor.dtype)});
    if (!tensor.streamed) continue;
    rows.back().push_back(tensor.frozen ? "frozen" : "streamed");
    if (tensor.fp8) rows.back().push_back(to_string(WeightForm::fp8_image()));
  }
  Json catalogue{{"format", 1},
                 {"engine", "offload"},
                 {"chunk_elems", plan.chunk_elems()},
                 {"gradient", to_string(types.gradient)}};
  // Left out for f32, as by versions that had no other.
  if (types.codec != StateCodec::kFp32) catalogue["state_codec"] = to_string(types.codec);
  catalogue["tensors"] = std::move(rows);
  return catalogue;
}

}  // namespace

std::int64_t TensorSpec::elems() const noexcept {
  return std::accumulate(shape.begin(), shape.end(), std::int64_t{1}, std::multiplies());
}

StoredWeight TensorSpec::stored_weight(std::int64_t chunk_elems) const {
  return {stored_form(how_streamed(), dtype), dtype, elems(), chunk_elems};
}

OpenedStore open_state_store(Budget& budget, const StoreOptions& options,
                             std::span<const TensorSpec> tensors, const ChunkPlan& plan,
                             const StateStream::Types& types, Contents contents,
                             std::span<std::byte> memory) {
  const Json catalogue = catalogue_of(tensors, plan, types);
  contents.catalogue = catalogue_bytes(catalogue);
  OpenedStore opened;
  opened.store = open_or_create(budget, options, contents, memory);
  const ChunkStore& store = *opened.store;
  check_catalogue(store, catalogue, "states of AdamW");
  opened.is_new = store.written_bytes({StateStream::kStateRegion, 0}, Version::kLive) == 0;
  return opened;
}

}  // namespace sluiceway
