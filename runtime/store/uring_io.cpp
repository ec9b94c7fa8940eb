#include "runtime/store/uring_io.h"

#include <liburing.h>
#include <poll.h>
#include <sys/eventfd.h>
#include <sys/resource.h>
#include <sys/uio.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <deque>
#include <fstream>
#include <mutex>
#include <optional>
#include <system_error>
#include <thread>
#include <utility>
#include <vector>

#include "kernels/base/check.h"
#include "runtime/device/worker.h"

namespace sluiceway {
namespace {

constexpr std::size_t kMostBytes = std::size_t{1} << 30;  // In a request or a registration.
constexpr std::uint64_t kWake = UINT64_MAX;  // Marks the completion of the eventfd's poll.

std::string reason(int error_number) {
  std::string text = std::generic_category().message(error_number);
  if (error_number == EPERM) {
    int disabled = 0;
    std::ifstream("/proc/sys/kernel/io_uring_disabled") >> disabled;
    return text + (disabled != 0 ? concat("; the sysctl kernel.io_uring_disabled is ", disabled)
                                 : "; the seccomp filter of a container forbids it");
  }
  if (error_number == ENOSYS) return text + "; this kernel has none, or a container hides it";
  if (error_number != ENOMEM) return text;
  rlimit limit{};
  getrlimit(RLIMIT_MEMLOCK, &limit);
  return text + "; RLIMIT_MEMLOCK is " + format_bytes(limit.rlim_cur);
}

class Ring {
 public:
  explicit Ring(unsigned entries) {
    const int result = io_uring_queue_init(entries, &ring_, 0);
    if (result < 0) {
      throw Unavailable(concat("uring_io: io_uring_setup failed for a ring of ", entries,
                               " requests: ", reason(-result)));
    }
  }
  Ring(const Ring&) = delete;
  Ring& operator=(const Ring&) = delete;
  ~Ring() { io_uring_queue_exit(&ring_); }
  io_uring* get() noexcept { return &ring_; }

 private:
  io_uring ring_{};
};

class WakeFd {
 public:
  WakeFd() : fd_(eventfd(0, EFD_CLOEXEC)) {
    if (fd_ < 0) throw Unavailable(concat("uring_io: eventfd failed: ", reason(errno)));
  }
  WakeFd(const WakeFd&) = delete;
  WakeFd& operator=(const WakeFd&) = delete;
  ~WakeFd() { close(fd_); }
  int get() const noexcept { return fd_; }
  void wake() const noexcept { (void)eventfd_write(fd_, 1); }  // Fails only after 2^64 - 1 wakes.
  void clear() const noexcept {
    eventfd_t wakes = 0;
    (void)eventfd_read(fd_, &wakes);
  }

 private:
  int fd_;
};

// `mutex_` guards what submitters share with the ring's thread: queue_, asleep_ and stopping_.
// Everything else belongs to that thread. The kernel publishes a completion through the tail of its
// queue, which liburing reads with acquire.
class UringIo final : public RawIo {
 public:
  UringIo(DriveFile& file, std::size_t depth, std::span<std::byte> memory)
      : RawIo(file.properties()),
        ring_(static_cast<unsigned>(depth + 1)),  // One for the eventfd.
        slots_(depth),
        thread_(std::in_place, Worker::Options{.name = "uring io"}),
        file_(std::move(file)) {
    properties_.backend = "uring";
    properties_.depth = depth;
    for (std::size_t i = depth; i > 0; --i) free_.push_back(i - 1);
    register_memory(memory);
    thread_->post([this] { run(); });
  }

  ~UringIo() override {
    {
      const std::lock_guard lock(mutex_);
      stopping_ = true;
      wake_up(lock);
    }
    thread_.reset();
    // Unregisters now, not when the kernel gets to it: locked memory counts against the next drive.
    if (!registered_.empty()) io_uring_unregister_buffers(ring_.get());
  }

  void submit(const RawRequest& request, Done done) override {
    const std::lock_guard lock(mutex_);
    queue_.push_back({request, std::move(done)});
    wake_up(lock);
  }

  int flush() noexcept override { return file_.flush(); }
  int grow(std::uint64_t size_bytes) noexcept override { return file_.grow(size_bytes); }
  std::uint64_t size_bytes() const noexcept override { return file_.size_bytes(); }

 private:
  using Lock = std::lock_guard<std::mutex>;

  struct Entry {
    RawRequest request;
    Done done;
  };
  struct Completed {
    std::size_t slot = 0;
    RawResult result;
  };

  void wake_up(const Lock&) noexcept {
    if (std::exchange(asleep_, false)) wake_fd_.wake();
  }

  void register_memory(std::span<std::byte> memory) {
    if (memory.empty()) return;
    for (std::size_t at = 0; at < memory.size(); at += kMostBytes) {
      registered_.push_back({memory.data() + at, std::min(kMostBytes, memory.size() - at)});
    }
    const int result = io_uring_register_buffers(ring_.get(), registered_.data(),
                                                 static_cast<unsigned>(registered_.size()));
    if (result == 0) {
      properties_.registered_bytes = memory.size();
      return;
    }
    registered_.clear();
    properties_.note = concat("uring_io: ", format_bytes(memory.size()),
                              " of memory cannot be registered: ", reason(-result),
                              "; requests use unregistered memory, which costs processor time");
  }

  // Returns the registered piece that holds all of `bytes`, or -1.
  int registration_of(std::span<const std::byte> bytes) const noexcept {
    for (std::size_t i = 0; i < registered_.size(); ++i) {
      const auto* const first = static_cast<const std::byte*>(registered_[i].iov_base);
      if (bytes.data() >= first && bytes.data() + bytes.size() <= first + registered_[i].iov_len) {
        return static_cast<int>(i);
      }
    }
    return -1;
  }

  void prepare(io_uring_sqe* sqe, const RawRequest& request) const noexcept {
    const int fd = file_.fd();
    const std::span<std::byte> bytes =
        request.bytes.first(std::min(request.bytes.size(), kMostBytes));
    const auto length = static_cast<unsigned>(bytes.size());
    const int piece = registration_of(bytes);
    if (request.kind == IoKind::kRead) {
      if (piece < 0) {
        io_uring_prep_read(sqe, fd, bytes.data(), length, request.offset);
      } else {
        io_uring_prep_read_fixed(sqe, fd, bytes.data(), length, request.offset, piece);
      }
    } else if (piece < 0) {
      io_uring_prep_write(sqe, fd, bytes.data(), length, request.offset);
    } else {
      io_uring_prep_write_fixed(sqe, fd, bytes.data(), length, request.offset, piece);
    }
  }

  // There is an entry for every slot and one for the eventfd, so none of these calls finds the
  // submission queue full.
  void hand_over(Entry entry) noexcept {
    const std::size_t slot = free_.back();
    free_.pop_back();
    slots_[slot] = std::move(entry);
    io_uring_sqe* const sqe = io_uring_get_sqe(ring_.get());
    prepare(sqe, slots_[slot].request);
    io_uring_sqe_set_data64(sqe, slot);
  }

  void watch_wake_fd() noexcept {
    io_uring_sqe* const sqe = io_uring_get_sqe(ring_.get());
    io_uring_prep_poll_add(sqe, wake_fd_.get(), POLLIN);
    io_uring_sqe_set_data64(sqe, kWake);
  }

  // Submits as many requests as the depth allows. Returns whether the thread must end.
  bool take_queued() noexcept {
    const std::lock_guard lock(mutex_);
    while (!queue_.empty() && !free_.empty()) {
      hand_over(std::move(queue_.front()));
      queue_.pop_front();
    }
    asleep_ = !free_.empty();  // At full depth only a completion makes room.
    return stopping_ && queue_.empty() && free_.size() == slots_.size();
  }

  void sleep_until_something_completes() noexcept {
    for (;;) {
      const int result = io_uring_submit_and_wait(ring_.get(), 1);
      if (result >= 0) return;
      // EAGAIN and EBUSY: the kernel has no memory for requests now, so they stay in the queue.
      if (result != -EINTR) std::this_thread::sleep_for(std::chrono::milliseconds(1));
      if (io_uring_cq_ready(ring_.get()) > 0) return;
    }
  }

  // Frees slots before a handler runs, so that requests from the handler find room.
  void hand_out() {
    completed_.clear();
    io_uring_cqe* cqe = nullptr;
    while (io_uring_peek_cqe(ring_.get(), &cqe) == 0) {
      const std::uint64_t slot = io_uring_cqe_get_data64(cqe);
      const int result = cqe->res;
      io_uring_cqe_seen(ring_.get(), cqe);
      if (slot == kWake) {
        wake_fd_.clear();
        watch_wake_fd();
      } else {
        completed_.push_back({slot, result < 0 ? RawResult{-result, 0}
                                               : RawResult{0, static_cast<std::size_t>(result)}});
      }
    }
    for (const Completed& each : completed_) {
      const Done done = std::exchange(slots_[each.slot].done, nullptr);
      free_.push_back(each.slot);
      done(each.result);
    }
  }

  void run() noexcept {
    watch_wake_fd();
    while (!take_queued()) {
      sleep_until_something_completes();
      {
        const std::lock_guard lock(mutex_);
        asleep_ = false;
      }
      hand_out();
    }
  }

  WakeFd wake_fd_;
  Ring ring_;
  std::vector<Entry> slots_;
  std::vector<std::size_t> free_;
  std::vector<iovec> registered_;
  std::vector<Completed> completed_;
  std::mutex mutex_;
  std::deque<Entry> queue_;
  bool asleep_ = false;
  bool stopping_ = false;
  std::optional<Worker> thread_;
  DriveFile file_;  // Declared last: taken over when nothing can throw Unavailable any more.
};

}  // namespace

std::unique_ptr<RawIo> make_uring_io(DriveFile& file, std::size_t depth,
                                     std::span<std::byte> memory) {
  return std::make_unique<UringIo>(file, depth, memory);
}

}  // namespace sluiceway
