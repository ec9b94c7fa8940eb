// io_uring: one ring and one thread a drive; the thread sleeps in the kernel until there is a
// request to hand over or a completion to hand out.
//
// Memory that is offered is registered, so that the kernel need not pin its pages for each request;
// where RLIMIT_MEMLOCK does not allow that, Properties::registered_bytes is 0 and requests go
// without. The file is not registered: the kernel takes a ring down some time after its end, and
// the drive would stay locked until then.
#pragma once

#include <cstddef>
#include <memory>
#include <span>

#include "runtime/store/drive_file.h"

namespace sluiceway {

// Takes the file over. Unavailable, with the reason: the system has no io_uring for us; `file` is
// then what it was.
[[nodiscard]] std::unique_ptr<RawIo> make_uring_io(DriveFile& file, std::size_t depth,
                                                   std::span<std::byte> memory);

}  // namespace sluiceway
