// Stores whose drives are named by their paths: new files are made, devices are taken as they are.
//
// Errors: those of open_io.h and chunk_store.h. Whatever create_store() throws, the files that it
//         made are gone again; a device may have been written to.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "runtime/memory/budget.h"
#include "runtime/store/chunk_store.h"
#include "runtime/store/new_layout.h"
#include "runtime/store/open_io.h"

namespace sluiceway {

// One path a weight. A path with nothing there becomes a file; a file that is there is refused.
[[nodiscard]] std::unique_ptr<ChunkStore> create_store(Budget& budget,
                                                       const std::vector<std::string>& paths,
                                                       const Contents& contents,
                                                       const std::vector<std::uint32_t>& weights,
                                                       const OpenOptions& options,
                                                       const ChunkStore::Progress& progress = {});

[[nodiscard]] std::unique_ptr<ChunkStore> open_store(Budget& budget,
                                                     const std::vector<std::string>& paths,
                                                     const OpenOptions& options);

}  // namespace sluiceway
