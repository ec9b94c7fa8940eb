#include "runtime/store/store_options.h"

#include <algorithm>
#include <filesystem>
#include <utility>

#include "kernels/base/check.h"
#include "runtime/store/memory_io.h"
#include "runtime/store/store_files.h"

namespace sluiceway {
namespace {

// Requests in flight on one drive: enough for all chunks on their way to or from it.
constexpr std::size_t kDriveDepth = 64;

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
  open.rate_gbps = options.rate_gbps;
  open.depth = kDriveDepth;
  open.whole_device = options.whole_device;
  open.memory = memory;
  std::vector<std::uint32_t> weights = options.weights;
  weights.resize(options.drives.size(), 1);
  if (options.nameless) {
    const Layout layout = new_layout(contents, weights);
    ChunkStore::Drives drives;
    for (std::size_t d = 0; d < weights.size(); ++d) {
      drives.push_back(std::make_unique<Drive>(
          open_nameless_io(options.drives[d], layout.drives[d].bytes, open)));
    }
    return ChunkStore::create(budget, std::move(drives), layout, options.progress);
  }
  if (is_there(options)) return open_store(budget, options.drives, open);
  return create_store(budget, options.drives, contents, weights, open, options.progress);
}

}  // namespace

bool is_in_memory(const StoreOptions& options) noexcept {
  return options.drives.empty() && !options.opener;
}

// A device holds a store if it begins like one; a file counts as a store if it exists.
bool is_there(const StoreOptions& options) {
  const auto there = [](const std::string& path) {
    if (!std::filesystem::exists(path)) return false;
    if (!std::filesystem::is_block_file(path)) return true;
    return ChunkStore::is_drive(path);
  };
  const auto count = std::ranges::count_if(options.drives, there);
  if (count == 0 || count == std::ssize(options.drives)) return count > 0;
  const std::string& missing = *std::ranges::find_if_not(options.drives, there);
  throw_invalid_argument(
      concat("store: ", count, " of ", options.drives.size(), " drives are there, but ", missing,
             " holds no store; bring that drive back, or choose new paths for all"));
}

std::unique_ptr<ChunkStore> open_or_create(Budget& budget, const StoreOptions& options,
                                           const Contents& contents, std::span<std::byte> memory) {
  if (options.opener) return options.opener(budget, contents, memory);
  if (is_in_memory(options)) return in_memory(budget, options, new_layout(contents, {1}));
  return on_drives(budget, options, contents, memory);
}

}  // namespace sluiceway
