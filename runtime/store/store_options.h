// Where a store lies (files, block devices or host memory); opens an existing store or makes one.
//
// Errors: InvalidArgument: some of the drives exist and others do not. Also the errors of
//         open_io(), create_store() and ChunkStore::open(). If a new store cannot be made, nothing
//         is left behind.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "runtime/memory/budget.h"
#include "runtime/store/chunk_store.h"
#include "runtime/store/new_layout.h"
#include "runtime/store/open_io.h"

namespace sluiceway {

// Opens the existing store, or makes one of `contents`; `memory` outlives it.
using StoreOpener = std::function<std::unique_ptr<ChunkStore>(
    Budget& budget, const Contents& contents, std::span<std::byte> memory)>;

struct StoreOptions {
  std::vector<std::string> drives;  // Files or block devices; empty: host memory.
  IoChoice io = IoChoice::kAuto;
  double rate_gbps = 0;                // Paces each drive (open_io.h); 0: as fast as it is.
  bool whole_device = false;           // Block devices are allowed.
  bool nameless = false;               // New files without a name, which end with the process.
  std::vector<std::uint32_t> weights;  // Drives in proportion to their rates; empty: equal.
  StoreOpener opener = {};             // Replaces all of the above: drives of another kind.
  ChunkStore::Progress progress = {};  // Progress of making a new store.
};

// Returns whether the store lies in host memory and ends with the process.
bool is_in_memory(const StoreOptions& options) noexcept;

// Returns whether the drives exist; false for host memory. Does not know about an opener's store.
bool is_there(const StoreOptions& options);

// `memory` is offered to io_uring and outlives the store.
std::unique_ptr<ChunkStore> open_or_create(Budget& budget, const StoreOptions& options,
                                           const Contents& contents, std::span<std::byte> memory);

}  // namespace sluiceway
