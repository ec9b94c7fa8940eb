#include "runtime/store/store_files.h"

#include <filesystem>
#include <system_error>
#include <utility>

#include "kernels/base/check.h"

namespace sluiceway {
namespace {

// Removes its files unless they are kept.
class NewFiles {
 public:
  NewFiles() = default;
  NewFiles(const NewFiles&) = delete;
  NewFiles& operator=(const NewFiles&) = delete;
  ~NewFiles() {
    std::error_code ignored;
    for (const std::string& path : paths_) std::filesystem::remove(path, ignored);
  }

  void make(const std::string& path, std::uint64_t bytes) {
    create_drive_file(path, bytes);
    paths_.push_back(path);
  }
  void keep() noexcept { paths_.clear(); }

 private:
  std::vector<std::string> paths_;
};

ChunkStore::Drives open_drives(const std::vector<std::string>& paths, const OpenOptions& options) {
  ChunkStore::Drives drives;
  for (const std::string& path : paths) {
    drives.push_back(std::make_unique<Drive>(open_io(path, options)));
  }
  return drives;
}

}  // namespace

std::unique_ptr<ChunkStore> create_store(Budget& budget, const std::vector<std::string>& paths,
                                         const Contents& contents,
                                         const std::vector<std::uint32_t>& weights,
                                         const OpenOptions& options,
                                         const ChunkStore::Progress& progress) {
  SLUICEWAY_CHECK(paths.size() == weights.size(), "create_store: ", paths.size(),
                  " paths, expected ", weights.size(), ", one per weight");
  const Layout layout = new_layout(contents, weights);
  NewFiles made;
  for (std::size_t d = 0; d < paths.size(); ++d) {
    std::error_code ignored;
    if (std::filesystem::is_block_file(paths[d], ignored)) continue;
    made.make(paths[d], layout.drives[d].bytes);
  }
  auto store = ChunkStore::create(budget, open_drives(paths, options), layout, progress);
  made.keep();
  return store;
}

std::unique_ptr<ChunkStore> open_store(Budget& budget, const std::vector<std::string>& paths,
                                       const OpenOptions& options) {
  return ChunkStore::open(budget, open_drives(paths, options));
}

}  // namespace sluiceway
