#include "compress/codec_families.h"

#include <algorithm>
#include <list>
#include <mutex>
#include <utility>

#include "compress/builtin_families.h"
#include "compress/codec_state.h"
#include "kernels/base/check.h"

namespace sluiceway {
namespace {

// A list, so that rows keep their address when another is added.
struct Table {
  std::mutex mutex;
  std::list<CodecFamily> rows = {
      // The order in which errors list them.
      svd_family(),           block_random_family(), block_pca_family(), sparse_learned_family(),
      sparse_random_family(), identity_family(),     none_family(),      galore_family(),
      topk_columns_family(),
  };

  const CodecFamily* find(std::string_view name) const {
    const auto found =
        std::find_if(rows.begin(), rows.end(), [&](const auto& row) { return row.name == name; });
    return found == rows.end() ? nullptr : &*found;
  }
};

Table& table() {
  static Table* const instance = new Table;  // Outlives every codec, even at exit.
  return *instance;
}

}  // namespace

void register_codec(CodecFamily family) {
  constexpr std::size_t kMost = sizeof(CodecStateHeader::family);
  SLUICEWAY_CHECK(!family.name.empty() && family.name.size() <= kMost && family.name != "auto",
                  "register_codec: name is \"", family.name, "\", expected 1 to ", kMost,
                  " characters, and not \"auto\"");
  SLUICEWAY_CHECK(family.core && family.make, "register_codec: ", family.name,
                  " needs both core and make; set them");
  Table& all = table();
  const std::lock_guard lock(all.mutex);
  SLUICEWAY_CHECK(all.find(family.name) == nullptr, "register_codec: \"", family.name,
                  "\" already exists; choose another name");
  all.rows.push_back(std::move(family));
}

std::vector<const CodecFamily*> codec_families() {
  Table& all = table();
  const std::lock_guard lock(all.mutex);
  std::vector<const CodecFamily*> families;
  for (const CodecFamily& row : all.rows) families.push_back(&row);
  return families;
}

const CodecFamily* find_codec_family(std::string_view name) {
  Table& all = table();
  const std::lock_guard lock(all.mutex);
  return all.find(name);
}

}  // namespace sluiceway
