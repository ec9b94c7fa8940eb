// A drive on io_uring: one ring and one thread per drive. The thread sleeps in the kernel until
// there is a request to submit or a completion to deliver.
//
// Offered memory is registered, so that the kernel need not pin its pages for each request. If
// RLIMIT_MEMLOCK does not allow that, Properties::registered_bytes is 0 and requests use
// unregistered memory. The file is not registered: the kernel frees a ring some time after its end,
// and the drive would stay locked until then.
#pragma once

#include <cstddef>
#include <memory>
#include <span>

#include "runtime/store/drive_file.h"

namespace sluiceway {

// Takes over the file. Unavailable, with the reason, if the system does not let us use io_uring;
// then `file` is unchanged.
[[nodiscard]] std::unique_ptr<RawIo> make_uring_io(DriveFile& file, std::size_t depth,
                                                   std::span<std::byte> memory);

}  // namespace sluiceway
