// io_uring where it is forbidden, without locked memory, and with registered memory.
//
// On a machine without io_uring, the tests that need a ring record the reason as a property of the
// run. raw_io_test and drive_test cover the promises that all back ends share.
#include "runtime/store/uring_io.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <linux/capability.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <csignal>
#include <cstddef>
#include <iostream>

#include "runtime/memory/pinned_pool.h"
#include "runtime/store/drive.h"
#include "runtime/store/open_io.h"
#include "tests/support/io_back_ends.h"

namespace sluiceway::test {
namespace {

using testing::AllOf;
using testing::HasSubstr;

constexpr std::size_t kBytes = 1 << 20;

// Makes io_uring_setup() fail with this errno in this process for good.
void forbid_io_uring(unsigned error_number) {
  sock_filter filter[] = {
      BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(seccomp_data, nr)),
      BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_io_uring_setup, 0, 1),
      BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | error_number),
      BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
  };
  const sock_fprog program{std::size(filter), filter};
  ASSERT_EQ(prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0), 0);
  ASSERT_EQ(prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program), 0);
}

// Drops root's capability to lock any amount of memory.
void limit_locked_memory(rlim_t bytes) {
  __user_cap_header_struct header{_LINUX_CAPABILITY_VERSION_3, 0};
  __user_cap_data_struct sets[2] = {};
  ASSERT_EQ(syscall(SYS_capget, &header, sets), 0);
  for (__user_cap_data_struct& set : sets) set.effective = set.permitted = set.inheritable = 0;
  ASSERT_EQ(syscall(SYS_capset, &header, sets), 0);
  const rlimit limit{bytes, bytes};
  ASSERT_EQ(setrlimit(RLIMIT_MEMLOCK, &limit), 0);
}

// Writes and reads all of a drive; returns whether the bytes are the same.
bool keeps_bytes(std::unique_ptr<RawIo> io, std::span<std::byte> memory) {
  Rng rng(20240611);
  for (std::byte& byte : memory) byte = static_cast<std::byte>(rng.bits());
  const std::vector<std::byte> written(memory.begin(), memory.end());
  Drive drive(std::move(io));
  drive.write_now(0, memory, "all");
  std::fill(memory.begin(), memory.end(), std::byte{0});
  drive.read_now(0, memory, "all");
  return std::equal(memory.begin(), memory.end(), written.begin());
}

class UringIoTest : public testing::Test {
 protected:
  UringIoTest() {
    GTEST_FLAG_SET(death_test_style, "fast");  // Nothing here has threads before the fork.
    create_drive_file(path.str(), kBytes);
  }
  const ScratchPath path;
};

// Ends the child, which checks its own output; a failed check is exit code 1.
[[noreturn]] void finish() { std::_Exit(testing::Test::HasFailure() ? 1 : 0); }

TEST_F(UringIoTest, ForbiddenBySeccompAutoFallsBackAndNamesTheReason) {
  EXPECT_EXIT(
      {
        forbid_io_uring(EPERM);
        auto io = open_io(path.str(), {.io = IoChoice::kAuto});
        EXPECT_EQ(io->properties().backend, "posix");
        EXPECT_THAT(io->properties().note,
                    AllOf(HasSubstr("io_uring_setup failed"), HasSubstr("not permitted"),
                          HasSubstr("seccomp"), HasSubstr("pread and pwrite")));
        const AlignedBytes bytes(kBytes);
        EXPECT_TRUE(keeps_bytes(std::move(io), bytes.span()));
        finish();
      },
      testing::ExitedWithCode(0), "");
}

TEST_F(UringIoTest, ForbiddenBySeccompUringThatWasAskedForIsUnavailable) {
  EXPECT_EXIT(
      {
        forbid_io_uring(EPERM);
        EXPECT_THAT([&] { (void)open_io(path.str(), {.io = IoChoice::kUring}); },
                    testing::ThrowsMessage<Unavailable>(HasSubstr("seccomp")));
        finish();
      },
      testing::ExitedWithCode(0), "");
}

TEST_F(UringIoTest, KernelWithoutItIsNamed) {
  EXPECT_EXIT(
      {
        forbid_io_uring(ENOSYS);
        EXPECT_THAT([&] { (void)open_io(path.str(), {.io = IoChoice::kUring}); },
                    testing::ThrowsMessage<Unavailable>(HasSubstr("this kernel has none")));
        finish();
      },
      testing::ExitedWithCode(0), "");
}

// The cases below need a ring.
class UringRingTest : public UringIoTest {
 protected:
  // Returns whether there is a ring; if not, prints the reason.
  static bool has_ring() {
    const std::optional<std::string> reason = why_no_uring();
    RecordProperty("not_run", reason.value_or(""));
    if (reason) std::cout << "not run: " << *reason << "\n";
    return !reason;
  }
};

TEST_F(UringRingTest, IsWhatAutoTakes) {
  if (!has_ring()) return;
  const auto io = open_io(path.str(), {.io = IoChoice::kAuto});
  EXPECT_EQ(io->properties().backend, "uring");
  EXPECT_EQ(io->properties().note, "");
}

TEST_F(UringRingTest, MemoryIsRegisteredWhereItMayBe) {
  if (!has_ring()) return;
  Budget budget{Budget::Limits{0, 0, 64 << 20, 0}};
  PinnedPool pool(budget, DeviceId::host(), {.slab_bytes = kBytes, .pages = Pages::kHuge});
  auto io = open_io(path.str(), {.io = IoChoice::kUring, .memory = pool.slab()});
  const RawIo::Properties& properties = io->properties();
  // Without the capability the limit decides; either result is reported.
  EXPECT_TRUE(properties.registered_bytes == kBytes || !properties.note.empty());
  const auto lease = pool.acquire(kBytes, "all", std::chrono::milliseconds(0), 4096);
  EXPECT_TRUE(keeps_bytes(std::move(io), lease.bytes()));
}

TEST_F(UringRingTest, MemoryBesideTheRegisteredOneServesToo) {
  if (!has_ring()) return;
  const AlignedBytes registered(kBytes), other(kBytes);
  EXPECT_TRUE(keeps_bytes(
      open_io(path.str(), {.io = IoChoice::kUring, .memory = registered.span()}), other.span()));
  // Also memory that begins inside the registered part and ends outside it.
  EXPECT_TRUE(keeps_bytes(
      open_io(path.str(), {.io = IoChoice::kUring, .memory = registered.span(0, kBytes / 2)}),
      registered.span()));
}

TEST_F(UringRingTest, WithoutRoomToLockItMemoryIsNotRegisteredAndRequestsGoWithout) {
  if (!has_ring()) return;
  EXPECT_EXIT(
      {
        limit_locked_memory(256 * 1024);
        const AlignedBytes bytes(kBytes);
        auto io = open_io(path.str(), {.io = IoChoice::kUring, .depth = 4, .memory = bytes.span()});
        EXPECT_EQ(io->properties().backend, "uring");
        EXPECT_EQ(io->properties().registered_bytes, 0U);
        EXPECT_THAT(io->properties().note,
                    AllOf(HasSubstr("1048576 bytes (1.00 MiB) of memory cannot be registered"),
                          HasSubstr("RLIMIT_MEMLOCK is 262144 bytes")));
        EXPECT_TRUE(keeps_bytes(std::move(io), bytes.span()));
        finish();
      },
      testing::ExitedWithCode(0), "");
}

// Some kernels count the ring itself too, and then there is no ring.
TEST_F(UringIoTest, WithoutAnyLockedMemoryAutoStillServesAndSaysWhatIsMissing) {
  EXPECT_EXIT(
      {
        limit_locked_memory(0);
        const AlignedBytes bytes(kBytes);
        auto io = open_io(path.str(), {.io = IoChoice::kAuto, .memory = bytes.span()});
        EXPECT_EQ(io->properties().registered_bytes, 0U);
        EXPECT_THAT(io->properties().note,
                    testing::AnyOf(HasSubstr("RLIMIT_MEMLOCK is 0 bytes"), HasSubstr("seccomp")));
        EXPECT_TRUE(keeps_bytes(std::move(io), bytes.span()));
        finish();
      },
      testing::ExitedWithCode(0), "");
}

TEST_F(UringRingTest, ClosedDriveCanBeOpenedAgainAtOnce) {
  if (!has_ring()) return;
  const AlignedBytes bytes(kBytes);
  for (int i = 0; i < 20; ++i) {
    EXPECT_TRUE(keeps_bytes(open_io(path.str(), {.io = IoChoice::kUring, .memory = bytes.span()}),
                            bytes.span()));
  }
}

// A resume may follow right after a kill, while requests of the killed process are still in flight.
TEST_F(UringRingTest, DriveOfAKilledProcessIsOpenedWhenItsRequestsHaveEnded) {
  if (!has_ring()) return;
  for (int i = 0; i < 20; ++i) {
    const pid_t child = fork();
    if (child == 0) {
      const AlignedBytes bytes(kBytes);
      Drive drive(open_io(path.str(), {.io = IoChoice::kUring, .memory = bytes.span()}));
      for (;;) {
        for (std::size_t at = 0; at < kBytes; at += 4096) {
          drive.write(at, bytes.span(at, 4096), "block", [](const IoError*) {});
        }
        drive.flush();
      }
    }
    usleep(static_cast<useconds_t>(5000 + 1000 * i));
    ASSERT_EQ(kill(child, SIGKILL), 0);
    int status = 0;
    ASSERT_EQ(waitpid(child, &status, 0), child);
    ASSERT_TRUE(WIFSIGNALED(status));
    EXPECT_NO_THROW((void)open_io(path.str(), {.io = IoChoice::kUring}));
  }
}

}  // namespace
}  // namespace sluiceway::test
