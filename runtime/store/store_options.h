// Where a store is to lie: files, block devices, host memory; opened where it is there, else made.
//
// Errors: InvalidArgument: some of the drives are there and others not. What open_io(),
//         create_store() and ChunkStore::open() say. Where a new store cannot be made, nothing is
//         left behind.
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

// Opens the store that there is, or makes one of `contents`; `memory` outlives it.
using StoreOpener = std::function<std::unique_ptr<ChunkStore>(
    Budget& budget, const Contents& contents, std::span<std::byte> memory)>;

struct StoreOptions {
  std::vector<std::string> drives;  // Files or block devices; empty: host memory.
  IoChoice io = IoChoice::kAuto;
  bool whole_device = false;           // Block devices are allowed.
  std::vector<std::uint32_t> weights;  // Of the drives, as their rates; empty: all alike.
  StoreOpener opener = {};             // In place of all above: drives of another kind.
  ChunkStore::Progress progress = {};  // Of making a new one.
};

// Whether drives are there; never of host memory. What an opener would find, it does not say.
bool is_there(const StoreOptions& options);

// `memory` is offered to io_uring and outlives the store.
std::unique_ptr<ChunkStore> open_or_create(Budget& budget, const StoreOptions& options,
                                           const Contents& contents, std::span<std::byte> memory);

}  // namespace sluiceway
