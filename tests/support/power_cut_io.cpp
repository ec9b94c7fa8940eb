#include "tests/support/power_cut_io.h"

#include <algorithm>
#include <cerrno>
#include <utility>

namespace sluiceway::test {
namespace {

constexpr std::size_t kSectorBytes = 512;

RawIo::Properties properties_of() {
  RawIo::Properties properties;
  properties.path = "a drive with a volatile cache";
  properties.backend = "memory";
  return properties;
}

}  // namespace

PowerCutIo::PowerCutIo(std::shared_ptr<Medium> medium, Options options)
    : RawIo(properties_of()),
      options_(options),
      medium_(std::move(medium)),
      seen_(*medium_),
      rng_(options.seed),
      threads_(std::make_unique<IoThreads>(
          "power cut io", 1, [this](const RawRequest& request) { return perform(request); })) {}

PowerCutIo::~PowerCutIo() {
  threads_.reset();
  cut();
}

void PowerCutIo::cut() {
  const Lock lock(mutex_);
  cut(lock);
}

std::uint64_t PowerCutIo::operations() const {
  const Lock lock(mutex_);
  return operations_;
}

void PowerCutIo::submit(const RawRequest& request, Done done) {
  threads_->submit(request, std::move(done));
}

void PowerCutIo::cut(const Lock&) {
  if (std::exchange(dead_, true)) return;
  for (const Write& write : unflushed_) {
    const std::int64_t fate = rng_.below(3);  // 0: lost, 1: kept, 2: torn.
    for (std::size_t at = 0; at < write.bytes.size(); at += kSectorBytes) {
      if (fate == 0 || (fate == 2 && rng_.below(2) == 0)) continue;
      std::copy_n(write.bytes.data() + at, std::min(kSectorBytes, write.bytes.size() - at),
                  medium_->data() + write.offset + at);
    }
  }
  unflushed_.clear();
}

void PowerCutIo::operate(const Lock& lock) {
  if (++operations_ == options_.dies_at) cut(lock);
}

RawResult PowerCutIo::perform(const RawRequest& request) {
  const Lock lock(mutex_);
  if (dead_) return {EIO, 0};
  const std::size_t room = request.offset < seen_.size() ? seen_.size() - request.offset : 0;
  const std::size_t bytes = std::min<std::size_t>(room, request.bytes.size());
  std::byte* const here = seen_.data() + request.offset;
  if (request.kind == IoKind::kRead) {
    std::copy_n(here, bytes, request.bytes.data());
    return {0, bytes};
  }
  if (bytes == 0 && !request.bytes.empty()) return {ENOSPC, 0};
  std::copy_n(request.bytes.data(), bytes, here);
  unflushed_.push_back({request.offset, {request.bytes.data(), request.bytes.data() + bytes}});
  operate(lock);
  return dead_ ? RawResult{EIO, 0} : RawResult{0, bytes};
}

int PowerCutIo::flush() noexcept {
  const Lock lock(mutex_);
  if (dead_) return EIO;
  operate(lock);
  if (dead_) return EIO;
  if (++flushes_ == options_.lies_at) return 0;
  for (const Write& write : unflushed_) {
    std::copy(write.bytes.begin(), write.bytes.end(),
              medium_->begin() + static_cast<std::ptrdiff_t>(write.offset));
  }
  unflushed_.clear();
  return 0;
}

// The size is durable at once: stores grow before they use the room, and flush in between.
int PowerCutIo::grow(std::uint64_t size_bytes) noexcept {
  const Lock lock(mutex_);
  if (dead_) return EIO;
  if (size_bytes <= seen_.size()) return 0;
  medium_->resize(size_bytes);
  seen_.resize(size_bytes);
  return 0;
}

std::uint64_t PowerCutIo::size_bytes() const noexcept {
  const Lock lock(mutex_);
  return seen_.size();
}

}  // namespace sluiceway::test
