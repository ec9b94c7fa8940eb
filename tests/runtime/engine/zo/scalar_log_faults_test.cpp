// ScalarLog when system calls fail: no room, no permission, another process, a failed sync.
#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <linux/capability.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <csignal>
#include <filesystem>
#include <functional>
#include <vector>

#include "kernels/base/error.h"
#include "runtime/engine/zo/scalar_log.h"
#include "tests/support/io_back_ends.h"
#include "tests/support/log_summary.h"
#include "tests/support/logged_run.h"
#include "tests/support/rng.h"

namespace sluiceway::test {
namespace {

using testing::HasSubstr;
using testing::ThrowsMessage;

// Lets no file grow beyond a limit, like a full disk.
class FullDisk {
 public:
  explicit FullDisk(std::uint64_t most_bytes) : handler_(std::signal(SIGXFSZ, SIG_IGN)) {
    getrlimit(RLIMIT_FSIZE, &before_);
    rlimit now = before_;
    now.rlim_cur = most_bytes;
    setrlimit(RLIMIT_FSIZE, &now);
  }
  FullDisk(const FullDisk&) = delete;
  FullDisk& operator=(const FullDisk&) = delete;
  ~FullDisk() {
    setrlimit(RLIMIT_FSIZE, &before_);
    std::signal(SIGXFSZ, handler_);
  }

 private:
  void (*handler_)(int);
  rlimit before_{};
};

// Applies file permissions to root too: the thread gives up the capability to override them, and
// still owns its files.
class WithoutOverride {
 public:
  WithoutOverride() {
    EXPECT_EQ(syscall(SYS_capget, &header_, before_), 0);
    __user_cap_data_struct now[2] = {before_[0], before_[1]};
    now[0].effective &= ~((1U << CAP_DAC_OVERRIDE) | (1U << CAP_DAC_READ_SEARCH));
    EXPECT_EQ(syscall(SYS_capset, &header_, now), 0);
  }
  WithoutOverride(const WithoutOverride&) = delete;
  WithoutOverride& operator=(const WithoutOverride&) = delete;
  ~WithoutOverride() { EXPECT_EQ(syscall(SYS_capset, &header_, before_), 0); }

 private:
  __user_cap_header_struct header_{_LINUX_CAPABILITY_VERSION_3, 0};
  __user_cap_data_struct before_[2]{};
};

class LogFaultTest : public testing::Test {
 protected:
  ScalarLog create(const std::string& where) {
    return ScalarLog::create(where, shape, base, options);
  }
  ScalarLog open(const std::string& where, Access access = Access::kReadWrite) {
    LogOptions how = options;
    how.access = access;
    return ScalarLog::open(where, shape, {base, {}}, how);
  }
  static int errno_of(const std::function<void()>& call) {
    try {
      call();
    } catch (const IoError& error) {
      return error.error_number();
    }
    return 0;
  }

  Rng rng{20261123};
  LogShape shape = random_shape(rng, 3);
  Base base = random_base(rng, 1, 0);
  LogOptions options{.busy_wait = std::chrono::milliseconds(0)};
  ScratchPath path{memory_folder()}, other{memory_folder()};
};

TEST_F(LogFaultTest, FullDiskLosesNothingAndGoesOnWhenThereIsRoom) {
  const std::uint64_t entry = entry_bytes(shape);
  for (std::uint64_t over = 0; over < entry; ++over) {
    std::filesystem::remove(path.str());
    ScalarLog log = create(path.str());
    append_steps(log, 4);
    const std::vector<std::byte> before = file_bytes(path.str());
    {
      const FullDisk full(before.size() + over);
      for (int i = 0; i < 2; ++i) {
        const int said = errno_of([&] { append_steps(log, 5); });
        ASSERT_TRUE(said == ENOSPC || said == EFBIG) << said;
        ASSERT_EQ(log.next_step(), 4U);
      }
      ASSERT_EQ(inspect_log(path.str()).next_step, 4U);
    }
    append_steps(log, 6);
    ASSERT_EQ(open(path.str(), Access::kRead).next_step(), 6U);
    ASSERT_FALSE(inspect_log(path.str()).lost);
    ASSERT_TRUE(files_beside(path.str(), ".").empty());
  }
}

TEST_F(LogFaultTest, NewLogsThatHaveNoRoomLeaveNothing) {
  ScalarLog log = create(path.str());
  append_steps(log, 4);
  const FullDisk full(kLogHeaderBytes + 1);
  EXPECT_EQ(errno_of([&] { log.branch(4, other.str()); }), EFBIG);
  EXPECT_TRUE(files_beside(other.str(), "").empty());
  const FullDisk fuller(kLogHeaderBytes - 1);
  EXPECT_EQ(errno_of([&] { create(other.str()); }), EFBIG);
  EXPECT_TRUE(files_beside(other.str(), "").empty());
}

TEST_F(LogFaultTest, DamagedTailThatCannotBeKeptIsNotCut) {
  { append_steps(*std::make_unique<ScalarLog>(create(path.str())), 9); }
  std::vector<std::byte> bytes = file_bytes(path.str());
  bytes[kLogHeaderBytes] ^= std::byte{1};
  write_file(path.str(), bytes);
  ScalarLog log = open(path.str());
  {
    const FullDisk full(kLogHeaderBytes);
    EXPECT_EQ(errno_of([&] { append_steps(log, 1); }), EFBIG);
  }
  EXPECT_EQ(file_bytes(path.str()), bytes);
  append_steps(log, 1);
  EXPECT_EQ(files_beside(path.str(), ".lost.").size(), 1U);
  std::filesystem::remove(files_beside(path.str(), ".lost.").at(0));
}

TEST_F(LogFaultTest, SecondWriterIsRefusedAndReadersAreNot) {
  ScalarLog log = create(path.str());
  append_steps(log, 3);
  EXPECT_THAT([&] { open(path.str()); },
              ThrowsMessage<IoError>(HasSubstr("is open in another process or drive")));
  const pid_t child = fork();
  if (child == 0) {
    const bool refused = errno_of([&] { open(path.str()); }) == EBUSY;
    std::_Exit(refused && open(path.str(), Access::kRead).next_step() == 3 ? 0 : 1);
  }
  int status = -1;
  EXPECT_EQ(waitpid(child, &status, 0), child);
  EXPECT_EQ(status, 0);
  append_steps(log, 4);
  { const ScalarLog moved = std::move(log); }
  EXPECT_EQ(open(path.str()).next_step(), 4U);
}

TEST_F(LogFaultTest, ReadOnlyFolderIsReadAndNotWritten) {
  const std::string folder = path.str(), file = folder + "/log";
  std::filesystem::create_directory(folder);
  {
    ScalarLog log = create(file);
    append_steps(log, 3);
  }
  chmod(file.c_str(), 0444);
  chmod(folder.c_str(), 0555);
  {
    const WithoutOverride without_override;
    EXPECT_EQ(errno_of([&] { open(file); }), EACCES);
    EXPECT_EQ(errno_of([&] { create(folder + "/other"); }), EACCES);
    ScalarLog log = open(file, Access::kRead);
    EXPECT_EQ(difference(log.history()), "");
    EXPECT_EQ(log.pending(0, 0, 3).updates.size(), 9U);
    EXPECT_EQ(errno_of([&] { log.branch(2, folder + "/other"); }), EACCES);
    log.branch(2, other.str());
    EXPECT_THAT([&] { append_steps(log, 4); },
                ThrowsMessage<InvalidArgument>(HasSubstr("was opened for reading")));
    EXPECT_THROW(log.rollback(1), InvalidArgument);
    EXPECT_THROW(log.sync(), InvalidArgument);
    EXPECT_EQ(inspect_log(file).next_step, 3U);
  }
  EXPECT_EQ(inspect_log(other.str()).next_step, 2U);
  chmod(folder.c_str(), 0755);
}

TEST_F(LogFaultTest, WhatIsNoLogIsRefusedUnread) {
  EXPECT_EQ(errno_of([&] { open(path.str()); }), ENOENT);
  EXPECT_EQ(errno_of([&] { create(path.str() + "/none/log"); }), ENOENT);
  EXPECT_THAT([&] { open("/dev/full"); },
              ThrowsMessage<InvalidArgument>(HasSubstr("not a regular file")));
  ASSERT_EQ(mkfifo(path.str().c_str(), 0600), 0);
  EXPECT_THROW(open(path.str()), InvalidArgument);
  std::filesystem::remove(path.str());
  write_file(path.str(), {});
  EXPECT_THAT([&] { open(path.str()); }, ThrowsMessage<Corrupt>(HasSubstr("ends after 0 bytes")));
  std::filesystem::resize_file(path.str(), std::uintmax_t{1} << 42);  // A sparse file.
  EXPECT_THAT([&] { open(path.str()); },
              ThrowsMessage<Corrupt>(HasSubstr("does not begin with SLUICEZO")));
  EXPECT_EQ(errno_of([&] { create(path.str()); }), EEXIST);
}

TEST_F(LogFaultTest, AfterAFailedSyncNothingMoreIsTaken) {
  options.sync_interval = std::chrono::hours(1);
  ScalarLog log = create(path.str());
  append_steps(log, 3);
  int fd = -1;  // The log's; replaced by one that cannot be synced.
  for (const auto& one : std::filesystem::directory_iterator("/proc/self/fd")) {
    std::error_code ignored;
    if (std::filesystem::read_symlink(one, ignored) == path.str()) {
      fd = std::stoi(one.path().filename().string());
    }
  }
  ASSERT_GE(fd, 0);
  int ends[2];
  ASSERT_EQ(pipe(ends), 0);
  ASSERT_EQ(dup2(ends[1], fd), fd);
  EXPECT_EQ(errno_of([&] { log.sync(); }), EINVAL);
  for (int i = 0; i < 2; ++i) {
    EXPECT_THAT([&] { append_steps(log, 4); }, ThrowsMessage<IoError>(HasSubstr("open it again")));
    EXPECT_THAT([&] { log.sync(); }, ThrowsMessage<IoError>(HasSubstr("open it again")));
  }
  EXPECT_EQ(log.next_step(), 3U);
  close(ends[0]);
  close(ends[1]);
  EXPECT_EQ(inspect_log(path.str()).next_step, 3U);
}

}  // namespace
}  // namespace sluiceway::test
