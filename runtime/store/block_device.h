// Whether a block device may be taken whole: only one on which nobody has left anything.
//
// libblkid looks for partition tables, file systems, swap, LVM, md and other members of arrays;
// what it knows, we refuse. A store of ours it does not know.
//
// Errors: InvalidArgument names the path and what was found; IoError if it cannot be read;
//         Unavailable where libblkid is not installed. Nothing is ever written.
#pragma once

#include <optional>
#include <string>

namespace sluiceway {

// What is on an open file or device, "ext4 file system" or "gpt partition table", or nothing.
std::optional<std::string> signature_on(int fd, const std::string& path);

// Throws unless nothing is found on it.
void check_unused(int fd, const std::string& path);

}  // namespace sluiceway
