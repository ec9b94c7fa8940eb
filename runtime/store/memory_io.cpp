#include "runtime/store/memory_io.h"

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <mutex>
#include <shared_mutex>
#include <utility>
#include <vector>

#include "runtime/memory/buffer.h"
#include "runtime/store/io_threads.h"

namespace sluiceway {
namespace {

// Each growth adds a segment, so nothing moves. `mutex_` guards the list of segments: requests
// share it, grow() takes it exclusively.
class MemoryIo final : public RawIo {
 public:
  MemoryIo(Budget& budget, std::uint64_t size_bytes, const std::string& name)
      : RawIo(properties_of(name)),
        budget_(budget),
        threads_("memory io", 1, [this](const RawRequest& request) { return perform(request); }) {
    add_segment(size_bytes);
  }

  void submit(const RawRequest& request, Done done) override {
    threads_.submit(request, std::move(done));
  }

  int flush() noexcept override { return 0; }

  int grow(std::uint64_t size_bytes) noexcept override {
    const std::lock_guard lock(mutex_);
    if (size_bytes <= size_bytes_) return 0;
    try {
      add_segment(size_bytes - size_bytes_);
      return 0;
    } catch (...) {  // The budget or the system refused.
      return ENOMEM;
    }
  }

  std::uint64_t size_bytes() const noexcept override {
    const std::shared_lock lock(mutex_);
    return size_bytes_;
  }

  std::span<std::byte> memory(std::uint64_t offset, std::size_t bytes) noexcept override {
    const std::shared_lock lock(mutex_);
    for (const Segment& segment : segments_) {
      if (offset < segment.first || offset + bytes > segment.first + segment.memory.size())
        continue;
      return {segment.memory.data() + (offset - segment.first), bytes};
    }
    return {};
  }

 private:
  struct Segment {
    std::uint64_t first = 0;  // Offset of the segment's first byte.
    Buffer memory;
  };

  static Properties properties_of(const std::string& name) {
    Properties properties;
    properties.path = name;
    properties.backend = "memory";
    return properties;
  }

  void add_segment(std::uint64_t bytes) {
    Buffer memory(budget_, Tier::kHost, DeviceId::host(), bytes, "store " + properties_.path);
    segments_.push_back({size_bytes_, std::move(memory)});
    size_bytes_ += bytes;
  }

  RawResult perform(const RawRequest& request) const noexcept {
    const std::shared_lock lock(mutex_);
    std::size_t moved = 0;
    for (const Segment& segment : segments_) {
      const std::uint64_t at = request.offset + moved;
      if (at < segment.first || at >= segment.first + segment.memory.size()) continue;
      const std::size_t inside = at - segment.first;
      const std::size_t bytes =
          std::min(segment.memory.size() - inside, request.bytes.size() - moved);
      std::byte* const here = segment.memory.data() + inside;
      std::byte* const there = request.bytes.data() + moved;
      std::memcpy(request.kind == IoKind::kRead ? there : here,
                  request.kind == IoKind::kRead ? here : there, bytes);
      moved += bytes;
      if (moved == request.bytes.size()) break;
    }
    const bool no_room = moved == 0 && !request.bytes.empty() && request.kind == IoKind::kWrite;
    return {no_room ? ENOSPC : 0, moved};
  }

  Budget& budget_;
  mutable std::shared_mutex mutex_;
  std::vector<Segment> segments_;
  std::uint64_t size_bytes_ = 0;
  IoThreads threads_;  // Last: its thread ends before the segments go.
};

}  // namespace

std::unique_ptr<RawIo> open_memory_io(Budget& budget, std::uint64_t size_bytes,
                                      const std::string& name) {
  return std::make_unique<MemoryIo>(budget, size_bytes, name);
}

}  // namespace sluiceway
