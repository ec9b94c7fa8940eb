// Stores whose drives are given as paths: makes new files, uses devices as they are.
//
// Errors: as in open_io.h and chunk_store.h. If create_store() throws, it removes the files that it
//         made; a device may have been written to.
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

// Takes one path per weight. Makes a file where none exists, and refuses an existing file.
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
