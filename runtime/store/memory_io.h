// A drive in host memory: the same store without a disk, for `tier: host` and for tests.
//
// Contents start as zero. Requests are copied by a thread of its own, in order of submission; a
// request beyond the end is cut short like one of a file. Nothing survives the object.
//
// Errors: OutOfMemory from the constructor, as the budget says it; grow() returns ENOMEM.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "runtime/memory/budget.h"
#include "runtime/store/raw_io.h"

namespace sluiceway {

// The bytes are reserved in `budget`, tier kHost, which outlives the drive. `name` stands where
// others have a path.
[[nodiscard]] std::unique_ptr<RawIo> open_memory_io(Budget& budget, std::uint64_t size_bytes,
                                                    const std::string& name);

}  // namespace sluiceway
