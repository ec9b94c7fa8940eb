// Every kind of drive of this build and machine, for tests that share their bodies.
#pragma once

#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "runtime/memory/budget.h"
#include "runtime/store/raw_io.h"
#include "tests/support/rng.h"

namespace sluiceway::test {

// A path of its own, in a temporary folder or in `folder`; its destructor removes what is there.
class ScratchPath {
 public:
  explicit ScratchPath(const std::string& folder = "");
  ScratchPath(const ScratchPath&) = delete;
  ScratchPath& operator=(const ScratchPath&) = delete;
  ~ScratchPath();
  const std::string& str() const noexcept { return path_; }

 private:
  std::string path_;
};

// Zeros that start on a page boundary.
class AlignedBytes {
 public:
  explicit AlignedBytes(std::size_t size);
  AlignedBytes(std::size_t size, Rng& rng);  // Random bytes.
  std::byte* data() const noexcept { return bytes_.get(); }
  std::size_t size() const noexcept { return size_; }
  std::span<std::byte> span() const noexcept { return {data(), size_}; }
  std::span<std::byte> span(std::size_t at, std::size_t bytes) const {
    return span().subspan(at, bytes);
  }
  friend bool operator==(const AlignedBytes& a, const AlignedBytes& b);

 private:
  struct Free {
    void operator()(std::byte* bytes) const noexcept;
  };
  std::size_t size_;
  std::unique_ptr<std::byte, Free> bytes_;
};

// Waits for a number of calls of down(). The last one has returned when wait() returns.
class Countdown {
 public:
  explicit Countdown(std::size_t count) : left_(count) {}
  void down() {
    const std::lock_guard lock(mutex_);
    if (--left_ == 0) changed_.notify_all();
  }
  void wait() {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [this] { return left_ == 0; });
  }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  std::size_t left_;
};

// Says why tests cannot run over uring; empty if they can. ThreadSanitizer does not see the
// kernel's half of it.
std::optional<std::string> why_no_uring();

// "posix", "tmpfs" (posix without O_DIRECT), "memory", "fault" (completions out of order, sometimes
// short), "slow", and "uring" if why_no_uring() is empty.
std::vector<std::string> io_back_ends();

// A drive of `size_bytes` zeros. The path lives as long as the pair.
struct OpenedBackEnd {
  std::unique_ptr<ScratchPath> path;
  std::unique_ptr<RawIo> io;
};
OpenedBackEnd open_back_end(const std::string& name, std::uint64_t size_bytes, std::size_t depth);

}  // namespace sluiceway::test
