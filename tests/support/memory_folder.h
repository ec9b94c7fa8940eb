// A folder in memory, whose files are synced at once and have no O_DIRECT.
#pragma once

#include <linux/magic.h>
#include <sys/vfs.h>
#include <unistd.h>

#include <string>

namespace sluiceway::test {

// A tmpfs that may be written to; "" where this machine has none of these. A container may have a
// folder of these names on its disk.
inline std::string memory_folder() {
  for (const char* folder : {"/dev/shm", "/run", "/tmp"}) {
    struct statfs found {};
    const bool in_memory = statfs(folder, &found) == 0 && found.f_type == TMPFS_MAGIC;
    if (in_memory && access(folder, W_OK | X_OK) == 0) return folder;
  }
  return "";
}

}  // namespace sluiceway::test
