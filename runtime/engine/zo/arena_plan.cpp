#include "runtime/engine/zo/arena_plan.h"

#include <algorithm>
#include <map>
#include <nlohmann/json.hpp>
#include <set>
#include <string_view>
#include <utility>

#include "kernels/base/check.h"
#include "runtime/device/device_memory.h"
#include "runtime/engine/zo/log_format.h"
#include "runtime/store/store_catalogue.h"

namespace sluiceway {
namespace {

constexpr std::uint32_t kSlots = 2;  // The base that is in use, and the next one.
constexpr std::string_view kHolds = "weights of a zeroth-order run";

void check_weights(const std::vector<ArenaWeight>& weights, std::uint64_t chunk_bytes) {
  SLUICEWAY_CHECK(!weights.empty(), "arena: no weights, expected 1 or more");
  SLUICEWAY_CHECK(chunk_bytes > 0 && chunk_bytes % kBlockBytes == 0, "arena: chunks of ",
                  chunk_bytes, " bytes, expected a multiple of ", kBlockBytes);
  std::set<std::string_view> names;
  for (const ArenaWeight& weight : weights) {
    SLUICEWAY_CHECK(!weight.name.empty() && names.insert(weight.name).second, "arena: the name \"",
                    weight.name,
                    "\" of a weight is empty or occurs twice; give each weight its own name, and "
                    "tied weights once");
    SLUICEWAY_CHECK(weight.elements > 0, "arena: ", weight.name, " has ", weight.elements,
                    " elements, expected 1 or more");
    SLUICEWAY_CHECK(
        weight.group >= ArenaWeight::kUntrained && weight.group < static_cast<int>(kMostGroups),
        "arena: ", weight.name, " is of group ", weight.group, ", expected 0 ", "to ",
        kMostGroups - 1, ", or ", ArenaWeight::kUntrained, " for none");
  }
}

// Of the region that a weight lies in.
std::uint64_t chunk_bytes_of(const ArenaWeight& weight, std::uint64_t most) {
  std::uint64_t bytes = kBlockBytes;
  while (bytes < weight.bytes() && bytes < most) bytes *= 2;
  return std::min(bytes, most);
}

}  // namespace

std::uint64_t whole_blocks(std::uint64_t bytes) noexcept { return round_up(bytes, kBlockBytes); }

ArenaPlan::ArenaPlan(std::vector<ArenaWeight> weights, std::uint64_t chunk_bytes)
    : weights_(std::move(weights)), chunk_bytes_(chunk_bytes) {
  check_weights(weights_, chunk_bytes_);
  std::map<std::uint64_t, std::uint32_t> region_of;  // By the size of its chunks.
  for (const ArenaWeight& weight : weights_) region_of[chunk_bytes_of(weight, chunk_bytes_)] = 0;
  for (auto& [bytes, region] : region_of) {
    region = static_cast<std::uint32_t>(regions_.size());
    regions_.push_back({RegionKind::kWeights, bytes, 0, kSlots});
  }
  for (std::size_t w = 0; w < weights_.size(); ++w) {
    const std::uint32_t region = region_of.at(chunk_bytes_of(weights_[w], chunk_bytes_));
    RegionSpec& spec = regions_[region];
    first_piece_.push_back(pieces_.size());
    const std::uint64_t all = weights_[w].bytes();
    for (std::uint64_t first = 0; first < all; first += spec.chunk_bytes) {
      const std::uint64_t bytes = std::min(spec.chunk_bytes, all - first);
      pieces_.push_back({w, {region, spec.chunks++}, first, bytes, whole_blocks(bytes)});
    }
  }
  first_piece_.push_back(pieces_.size());
}

std::span<const ArenaPiece> ArenaPlan::pieces_of(std::size_t weight) const {
  SLUICEWAY_CHECK(weight < weights_.size(), "arena: weight ", weight, ", expected a number below ",
                  weights_.size());
  return std::span(pieces_).subspan(first_piece_[weight],
                                    first_piece_[weight + 1] - first_piece_[weight]);
}

std::uint64_t ArenaPlan::stored_bytes(std::size_t weight) const {
  const ArenaPiece& last = pieces_of(weight).back();
  return last.first + last.stored_bytes;
}

std::uint64_t ArenaPlan::largest_chunk_bytes() const noexcept {
  return regions_.back().chunk_bytes;
}

namespace {

nlohmann::ordered_json catalogue_of(const std::vector<ArenaWeight>& weights,
                                    std::uint64_t chunk_bytes) {
  auto rows = nlohmann::ordered_json::array();
  for (const ArenaWeight& weight : weights) {
    rows.push_back(
        {weight.name, weight.elements, to_string(weight.dtype), concat("group ", weight.group)});
  }
  return {
      {"format", 1}, {"engine", "zo"}, {"chunk_bytes", chunk_bytes}, {"weights", std::move(rows)}};
}

}  // namespace

Contents ArenaPlan::contents() const {
  Contents contents;
  contents.regions = regions_;
  contents.catalogue = catalogue_bytes(catalogue_of(weights_, chunk_bytes_));
  return contents;
}

void ArenaPlan::check(const ChunkStore& store) const {
  check_catalogue(store, catalogue_of(weights_, chunk_bytes_), kHolds);
}

}  // namespace sluiceway
