#include "runtime/store/file_lock.h"

#include <sys/file.h>

#include "kernels/base/check.h"

namespace sluiceway {

void lock_file(int fd, const std::string& path, Access access,
               std::chrono::steady_clock::time_point give_up, const char* who) {
  const int how = (access == Access::kRead ? LOCK_SH : LOCK_EX) | LOCK_NB;
  if (while_busy(give_up, EWOULDBLOCK, [&] { return flock(fd, how); }) == 0) return;
  if (errno != EWOULDBLOCK) check_syscall(-1, "flock", path);
  throw IoError(concat(who, ": ", path, " is open in another process or drive; ",
                       "wait until it is closed there"),
                EBUSY, path, 0);
}

}  // namespace sluiceway
