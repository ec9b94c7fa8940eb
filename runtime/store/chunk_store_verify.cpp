// How a store is verified: verify().
#include <algorithm>
#include <string>
#include <utility>

#include "runtime/store/blocks.h"
#include "runtime/store/chunk_store.h"
#include "runtime/store/new_layout.h"

namespace sluiceway {
namespace {

// This many requests keep a drive busy; more would only take memory.
constexpr std::uint64_t kMostAtOnce = 8;
constexpr std::uint64_t kMostBytes = std::uint64_t{64} << 20;

std::string text_of(const std::exception_ptr& error) {
  try {
    std::rethrow_exception(error);
  } catch (const std::exception& known) {
    return known.what();
  }
}

}  // namespace

// Errors are listed in the order of the chunks, in whatever order the drives answer.
struct ChunkStore::Verification {
  struct Wanted {
    ChunkId id;
    Version version;
  };

  void want(ChunkId id, Version version, std::uint64_t chunk_bytes) {
    wanted.push_back({id, version});
    if (memory.size() < wanted.size()) memory.emplace_back(chunk_bytes);
    const std::uint64_t at_once =
        std::clamp<std::uint64_t>(kMostBytes / chunk_bytes, 1, kMostAtOnce);
    if (wanted.size() >= at_once) read_wanted();
  }

  void read_wanted() {
    std::vector<std::string> said(wanted.size());
    try {
      for (std::size_t i = 0; i < wanted.size(); ++i) {
        const auto [id, version] = wanted[i];
        const std::uint64_t bytes = store.written_bytes(id, version);
        if (bytes == 0) continue;
        store.read(id, version, memory[i].all().first(bytes),
                   [&said, i](const std::exception_ptr& error) {
                     if (error) said[i] = text_of(error);
                   });
      }
    } catch (...) {
      store.wait_idle();  // Requests in flight use local variables.
      throw;
    }
    store.wait_idle();
    wanted.clear();
    for (std::string& line : said) {
      if (!line.empty()) wrong.push_back(std::move(line));
      if (progress) progress(++done, all);
    }
  }

  ChunkStore& store;
  const Progress& progress;
  std::uint64_t all = 0, done = 0;
  std::vector<Wanted> wanted{};
  std::vector<Blocks> memory{};  // For the chunks of one region, reused.
  std::vector<std::string> wrong{};
};

std::vector<std::string> ChunkStore::verify(const Progress& progress) {
  check_usable("verify");
  std::vector<Commit> commits{superblock_.live};
  if (superblock_.pinned) commits.push_back(*superblock_.pinned);
  Verification verification{*this, progress, committed_chunks(layout_) * commits.size()};
  std::vector<std::string>& wrong = verification.wrong;
  if (!damage_.empty()) wrong.push_back(damage_);
  for (const Commit& commit : commits) {
    try {
      static_cast<void>(run_state(commit));
    } catch (const Error& error) {
      wrong.emplace_back(error.what());
    }
  }
  for (std::uint32_t r = 0; r < layout_.regions.size(); ++r) {
    const Region& region = layout_.regions[r];
    if (!region.is_committed()) continue;
    for (std::uint64_t chunk = 0; chunk < region.chunks; ++chunk) {
      verification.want({r, chunk}, Version::kLive, region.chunk_bytes);
      if (superblock_.pinned) {
        verification.want({r, chunk}, Version::kPinned, region.chunk_bytes);
      }
    }
    verification.read_wanted();
    verification.memory.clear();
  }
  return std::move(wrong);
}

}  // namespace sluiceway
