// A drive in host memory: a store without a disk, for `tier: host` and for tests.
//
// Contents start as zero. A thread of the drive copies requests in order of submission. A request
// that ends beyond the drive is cut short, as with a file. Nothing survives the object.
//
// Errors: OutOfMemory from the constructor, with the text of the budget; grow() returns ENOMEM.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "runtime/memory/budget.h"
#include "runtime/store/raw_io.h"

namespace sluiceway {

// Reserves the bytes in `budget`, tier kHost, which must outlive the drive. `name` takes the place
// of a path in texts.
[[nodiscard]] std::unique_ptr<RawIo> open_memory_io(Budget& budget, std::uint64_t size_bytes,
                                                    const std::string& name);

}  // namespace sluiceway
