// Runs pread and pwrite on a pool of `depth` threads; works everywhere.
#pragma once

#include <cstddef>
#include <memory>
#include <string>

#include "runtime/store/drive_file.h"

namespace sluiceway {

// `note` becomes Properties::note. At a `rate_gbps` above 0, requests end as on a drive of that
// rate that serves one after another. Unavailable: the system has no more threads.
[[nodiscard]] std::unique_ptr<RawIo> make_posix_io(DriveFile file, std::size_t depth,
                                                   std::string note, double rate_gbps = 0);

}  // namespace sluiceway
