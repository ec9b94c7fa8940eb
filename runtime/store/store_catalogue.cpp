#include "runtime/store/store_catalogue.h"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <span>
#include <string>

#include "kernels/base/check.h"

namespace sluiceway {
namespace {

using Json = nlohmann::ordered_json;

// A row begins with its name: "query [64,96] bf16".
std::string shown(const Json& row) {
  std::string text;
  for (const Json& field : row) {
    text += concat(text.empty() ? "" : " ",
                   field.is_string() ? field.get<std::string>() : field.dump());
  }
  return text;
}

// Returns the first difference between two lists with the plural name `plural`.
std::string difference_of_rows(std::string_view plural, const Json& theirs, const Json& ours) {
  for (std::size_t i = 0; i < std::min(theirs.size(), ours.size()); ++i) {
    if (theirs[i] != ours[i]) {
      return concat(plural.substr(0, plural.size() - 1), " ", i, " is ", shown(theirs[i]),
                    ", expected ", shown(ours[i]));
    }
  }
  return concat("it has ", theirs.size(), " ", plural, ", expected ", ours.size());
}

// Returns the first difference between two catalogues of this format.
std::string difference(const Json& found, const Json& expected) {
  for (const auto& [key, ours] : expected.items()) {
    const Json theirs = found.value(key, Json());
    if (theirs == ours) continue;
    if (ours.is_array()) return difference_of_rows(key, theirs, ours);
    return concat(key, " is ", theirs.is_null() ? "not set" : theirs.dump(), ", expected ",
                  ours.dump());
  }
  for (const auto& [key, theirs] : found.items()) {
    if (expected.contains(key)) continue;
    return concat(key, " is ", theirs.dump(), ", expected no such key");
  }
  return "the order of its keys differs";
}

}  // namespace

std::vector<std::byte> catalogue_bytes(const Json& catalogue) {
  const std::string text = catalogue.dump();
  const auto bytes = std::as_bytes(std::span(text));
  return {bytes.begin(), bytes.end()};
}

void check_catalogue(const ChunkStore& store, const Json& expected, std::string_view holds) {
  const std::string where = store.drives().front()->properties().path;
  const std::vector<std::byte>& bytes = store.layout().catalogue;
  const auto* const text = reinterpret_cast<const char*>(bytes.data());
  const Json found = Json::parse(text, text + bytes.size(), nullptr, false);
  SLUICEWAY_CHECK(found.is_object() && found.value("engine", "") == expected.at("engine") &&
                      found.value("format", 0) == expected.at("format"),
                  "store at ", where,
                  ": was made by another engine or version, expected a store of ", holds,
                  "; choose another path");
  if (found == expected) return;
  throw InvalidArgument(concat(
      "store at ", where, ": holds the ", holds, " of another run: ", difference(found, expected),
      "; choose another path, or use the model and the options that it was made with"));
}

}  // namespace sluiceway
