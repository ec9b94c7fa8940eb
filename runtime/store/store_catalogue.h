// The catalogue of a store, written by its user: one JSON object in the directory that says whose
// chunks the store holds.
//
//   {"format": 1, "engine": name, option: value, ..., "tensors": [[name, ...], ...]}
//
// Errors: InvalidArgument: the store was made by another engine or version, or with other options
//         or rows; the text names the first difference.
#pragma once

#include <cstddef>
#include <nlohmann/json_fwd.hpp>
#include <string_view>
#include <vector>

#include "runtime/store/chunk_store.h"

namespace sluiceway {

std::vector<std::byte> catalogue_bytes(const nlohmann::ordered_json& catalogue);

// `holds` says in the error what a store of this engine contains: "states of AdamW".
void check_catalogue(const ChunkStore& store, const nlohmann::ordered_json& expected,
                     std::string_view holds);

}  // namespace sluiceway
