// Whose chunks a store holds, as its user says it: one object of JSON in the directory.
//
//   {"format": 1, "engine": name, option: value, ..., "tensors": [[name, ...], ...]}
//
// Errors: InvalidArgument: the store is of another engine, another version, or of other options or
//         rows; the first difference is named.
#pragma once

#include <cstddef>
#include <nlohmann/json_fwd.hpp>
#include <string_view>
#include <vector>

#include "runtime/store/chunk_store.h"

namespace sluiceway {

std::vector<std::byte> catalogue_bytes(const nlohmann::ordered_json& catalogue);

// `holds` says in the error what a store of this engine has: "states of AdamW".
void check_catalogue(const ChunkStore& store, const nlohmann::ordered_json& expected,
                     std::string_view holds);

}  // namespace sluiceway
