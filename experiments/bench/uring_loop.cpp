#include "experiments/bench/uring_loop.h"

#include <fcntl.h>
#include <liburing.h>
#include <sys/uio.h>
#include <unistd.h>

#include <algorithm>

#include "kernels/base/check.h"
#include "runtime/trace/trace.h"

namespace sluiceway::bench {
namespace {

void check(int result, const char* call, const Round& round) {
  if (result >= 0) return;
  errno = -result;
  check_syscall(-1, call, round.path);
}

class BareLoop {
 public:
  explicit BareLoop(const Round& round)
      : round_(round),
        fd_(static_cast<int>(
            check_syscall(open(round.path.c_str(), O_RDWR | O_DIRECT), "open", round.path))) {
    check(io_uring_queue_init(static_cast<unsigned>(round.depth), &ring_, 0), "io_uring_setup",
          round);
    const iovec all{round.memory.data(), round.memory.size()};
    registered_ = io_uring_register_buffers(&ring_, &all, 1) == 0;
  }
  BareLoop(const BareLoop&) = delete;
  BareLoop& operator=(const BareLoop&) = delete;
  ~BareLoop() {
    io_uring_queue_exit(&ring_);
    close(fd_);
  }

  void run() {
    for (std::size_t slot = 0; slot < std::min(round_.depth, round_.requests); ++slot) submit(slot);
    for (std::uint64_t done = 0; done < round_.requests;) {
      check(io_uring_submit_and_wait(&ring_, 1), "io_uring_enter", round_);
      for (io_uring_cqe* cqe = nullptr; io_uring_peek_cqe(&ring_, &cqe) == 0; ++done) {
        check(cqe->res, "io_uring", round_);
        SLUICEWAY_CHECK(static_cast<std::size_t>(cqe->res) == round_.block_bytes,
                        "uring_loop: ", cqe->res, " bytes, expected ", round_.block_bytes);
        const std::uint64_t slot = io_uring_cqe_get_data64(cqe);
        io_uring_cqe_seen(&ring_, cqe);
        if (next_ < round_.requests) submit(slot);
      }
    }
  }

 private:
  void submit(std::uint64_t slot) {
    io_uring_sqe* const sqe = io_uring_get_sqe(&ring_);
    const std::uint64_t offset = next_ % round_.blocks * round_.block_bytes;
    std::byte* const memory = round_.memory.data() + slot * round_.block_bytes;
    const auto bytes = static_cast<unsigned>(round_.block_bytes);
    if (next_ % 2 == 0) {
      io_uring_prep_read(sqe, fd_, memory, bytes, offset);
      if (registered_) sqe->opcode = IORING_OP_READ_FIXED;
    } else {
      io_uring_prep_write(sqe, fd_, memory, bytes, offset);
      if (registered_) sqe->opcode = IORING_OP_WRITE_FIXED;
    }
    sqe->buf_index = 0;
    io_uring_sqe_set_data64(sqe, slot);
    ++next_;
  }

  const Round& round_;
  int fd_;
  io_uring ring_{};
  bool registered_ = false;
  std::uint64_t next_ = 0;
};

}  // namespace

double seconds_of_bare_loop(const Round& round) {
  BareLoop loop(round);
  const double begin_us = now_us();
  loop.run();
  return (now_us() - begin_us) * 1e-6;
}

}  // namespace sluiceway::bench
