// A run of steps on a store that can be checked at any moment: every chunk is a function of the
// step that last wrote it, and the set of chunks that a step writes is a function of the step.
#pragma once

#include <algorithm>
#include <cstdint>
#include <future>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "kernels/base/check.h"
#include "runtime/store/chunk_store.h"
#include "runtime/store/new_layout.h"
#include "tests/support/io_back_ends.h"

namespace sluiceway::test {

inline constexpr std::uint64_t kRunChunks = 7;
inline constexpr std::uint64_t kRunChunkBytes = 2 * kBlockBytes;

inline Layout run_layout(std::uint32_t drives = 1, std::uint32_t slots = 2) {
  Contents contents;
  contents.regions = {{RegionKind::kState, kRunChunkBytes, kRunChunks, slots},
                      {RegionKind::kGradient, kBlockBytes, kRunChunks, 2}};
  contents.run_state_bytes = kBlockBytes;
  contents.spares_per_drive = 2;
  return new_layout(contents, std::vector<std::uint32_t>(drives, 1));
}

inline bool writes(std::uint64_t step, std::uint64_t chunk) {
  return step == 1 || (step * 2654435761U + chunk * 40503U) % 5 != 0;
}

// Returns the step that last wrote `chunk`, once `step` is committed.
inline std::uint64_t last_written(std::uint64_t step, std::uint64_t chunk) {
  while (step > 0 && !writes(step, chunk)) --step;
  return step;
}

// Page-aligned memory of one chunk.
class ChunkMemory {
 public:
  explicit ChunkMemory(std::uint64_t bytes = kRunChunkBytes) : memory_(bytes) {}
  std::span<std::byte> bytes() const { return memory_.span(); }

  void fill(std::uint64_t step, std::uint64_t chunk) const {
    const std::span words(reinterpret_cast<std::uint64_t*>(memory_.data()),
                          memory_.size() / sizeof(std::uint64_t));
    std::uint64_t word = step * 0x9E3779B97F4A7C15U + chunk;
    for (std::uint64_t& out : words)
      out = word = word * 6364136223846793005U + 1442695040888963407U;
  }
  bool is_of(std::uint64_t step, std::uint64_t chunk) const {
    const ChunkMemory expected(memory_.size());
    expected.fill(step, chunk);
    return memory_ == expected.memory_;
  }

 private:
  AlignedBytes memory_;
};

// Waits for one request; returns its error as text, empty if there is none.
template <typename Start>
std::string outcome_of(const Start& start) {
  std::promise<std::string> said;
  start([&said](const std::exception_ptr& error) {
    try {
      if (error) std::rethrow_exception(error);
      said.set_value("");
    } catch (const Error& known) {
      said.set_value(known.what());
    }
  });
  return said.get_future().get();
}

// Writes one step without its commit; returns the first error, or nothing.
inline std::string write_step(ChunkStore& store, std::uint64_t step) {
  const ChunkMemory memory;
  for (std::uint64_t chunk = 0; chunk < kRunChunks; ++chunk) {
    if (!writes(step, chunk)) continue;
    memory.fill(step, chunk);
    const std::string said = outcome_of([&](ChunkStore::Done done) {
      store.write({0, chunk}, memory.bytes(), std::move(done));
    });
    if (!said.empty()) return said;
  }
  return "";
}

inline std::vector<std::byte> run_state_of(std::uint64_t step) {
  std::vector<std::byte> bytes(100 + step % 7);
  for (std::size_t i = 0; i < bytes.size(); ++i) bytes[i] = static_cast<std::byte>(step * 31 + i);
  return bytes;
}

// Returns what is wrong with the store's version as of `commit`, or nothing.
inline std::string difference(ChunkStore& store, Version version, const Commit& commit) {
  const ChunkMemory memory;
  for (std::uint64_t chunk = 0; chunk < kRunChunks; ++chunk) {
    const std::uint64_t step = last_written(commit.step, chunk);
    if ((store.written_bytes({0, chunk}, version) > 0) != (step > 0)) {
      return concat("chunk ", chunk, " of step ", commit.step, ": written or not?");
    }
    if (step == 0) continue;
    const std::string said = outcome_of([&](ChunkStore::Done done) {
      store.read({0, chunk}, version, memory.bytes(), std::move(done));
    });
    if (!said.empty()) return said;
    if (!memory.is_of(step, chunk)) return concat("chunk ", chunk, " is not of step ", step);
  }
  if (commit.step > 0 && store.run_state(commit) != run_state_of(commit.step)) {
    return concat("the run state is not that of step ", commit.step);
  }
  return "";
}

}  // namespace sluiceway::test
