// Checks that a block device is unused before a store takes the whole device.
//
// libblkid looks for partition tables, file systems, swap, LVM, md and other array members. We
// refuse a device on which it recognizes anything. It does not recognize our own stores.
//
// Errors: InvalidArgument names the path and what was found; IoError if the device cannot be read;
//         Unavailable where libblkid is not installed. Nothing is ever written.
#pragma once

#include <optional>
#include <string>

namespace sluiceway {

// Returns what an open file or device holds, such as "ext4 file system" or "gpt partition table";
// nothing if libblkid recognizes nothing.
std::optional<std::string> signature_on(int fd, const std::string& path);

// Throws InvalidArgument if libblkid recognizes anything on the device.
void check_unused(int fd, const std::string& path);

}  // namespace sluiceway
