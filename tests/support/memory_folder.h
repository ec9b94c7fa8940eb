// A folder in memory: its files are synced at once and do not support O_DIRECT.
#pragma once

#include <linux/magic.h>
#include <sys/vfs.h>
#include <unistd.h>

#include <string>

namespace sluiceway::test {

// Returns a writable tmpfs, or "" if this machine has none. In a container, folders of these names
// may be on disk.
inline std::string memory_folder() {
  for (const char* folder : {"/dev/shm", "/run", "/tmp"}) {
    struct statfs found {};
    const bool in_memory = statfs(folder, &found) == 0 && found.f_type == TMPFS_MAGIC;
    if (in_memory && access(folder, W_OK | X_OK) == 0) return folder;
  }
  return "";
}

}  // namespace sluiceway::test
