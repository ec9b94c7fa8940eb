#include "tests/support/fault_io.h"

#include <algorithm>
#include <thread>
#include <utility>

namespace sluiceway::test {
namespace {

constexpr std::size_t kSectorBytes = 512;

bool holds(const FaultIo::Span& span, std::uint64_t nth) {
  return nth >= span.first && nth - span.first < span.times;
}

}  // namespace

FaultIo::FaultIo(std::unique_ptr<RawIo> inner)
    : RawIo(inner->properties()),
      inner_(std::move(inner)),
      thread_(std::in_place, Worker::Options{.name = "fault io"}) {}

FaultIo::~FaultIo() {
  thread_.reset();
  inner_.reset();
}

void FaultIo::tell(Fault fault) {
  const std::lock_guard lock(mutex_);
  faults_.push_back(fault);
}

void FaultIo::fail(IoKind kind, Span span, int error_number) {
  tell({kind, span, What::kFail, error_number, 0});
}

void FaultIo::tear(Span span, int error_number) {
  tell({IoKind::kWrite, span, What::kTear, error_number, 0});
}

void FaultIo::shorten(IoKind kind, Span span, std::size_t bytes) {
  tell({kind, span, What::kShorten, 0, bytes});
}

void FaultIo::hold(IoKind kind, Span span) { tell({kind, span, What::kHold, 0, 0}); }

void FaultIo::release() {
  std::vector<Ended> held;
  {
    const std::lock_guard lock(mutex_);
    held.swap(held_);
    ++releases_;
    std::erase_if(faults_, [](const Fault& fault) { return fault.what == What::kHold; });
  }
  for (Ended& one : held) {
    thread_->post([one = std::move(one)] { one.done(one.result); });
  }
}

void FaultIo::fail_flush(Span span, int error_number) {
  const std::lock_guard lock(mutex_);
  flush_span_ = span;
  flush_error_ = error_number;
}

void FaultIo::reorder(std::uint64_t seed) {
  const std::lock_guard lock(mutex_);
  order_.emplace(seed);
}

std::uint64_t FaultIo::submitted(IoKind kind) const {
  const std::lock_guard lock(mutex_);
  return submitted_[static_cast<std::size_t>(kind)];
}

std::optional<FaultIo::Fault> FaultIo::next_fault(IoKind kind) {
  const std::lock_guard lock(mutex_);
  const std::uint64_t nth = ++submitted_[static_cast<std::size_t>(kind)];
  const auto found = std::find_if(faults_.rbegin(), faults_.rend(), [&](const Fault& fault) {
    return fault.kind == kind && holds(fault.span, nth);
  });
  if (found == faults_.rend()) return std::nullopt;
  return *found;
}

void FaultIo::submit(const RawRequest& request, Done done) {
  const std::optional<Fault> fault = next_fault(request.kind);
  if (!fault) return forward(request, std::move(done));
  switch (fault->what) {
    case What::kFail:
      thread_->post(
          [done = std::move(done), result = RawResult{fault->error_number, 0}] { done(result); });
      return;
    case What::kTear:
      return forward_torn(request, fault->error_number, std::move(done));
    case What::kShorten: {
      RawRequest part = request;
      part.bytes = request.bytes.first(std::min(fault->bytes, request.bytes.size()));
      // O_DIRECT takes whole blocks only: transfers everything, and reports the rest as missing.
      return forward(request, [done = std::move(done), most = part.bytes.size()](RawResult result) {
        done({result.error_number, std::min(result.bytes, most)});
      });
    }
    case What::kHold:
      return hold_back(request, std::move(done));
  }
}

// A request that the inner drive ends only after release() is no longer held.
void FaultIo::hold_back(const RawRequest& request, Done done) {
  std::unique_lock lock(mutex_);
  const std::uint64_t releases = releases_;
  lock.unlock();
  inner_->submit(request, [this, releases, done = std::move(done)](RawResult result) {
    std::unique_lock held(mutex_);
    if (releases == releases_) return held_.push_back({done, result});
    held.unlock();
    done(result);
  });
}

void FaultIo::forward(const RawRequest& request, Done done) {
  {
    const std::lock_guard lock(mutex_);
    ++outstanding_;
  }
  inner_->submit(request, [this, done = std::move(done)](RawResult result) {
    ended({done, result});
  });
}

// Reads the old contents, and writes back a mixture.
void FaultIo::forward_torn(const RawRequest& request, int error_number, Done done) {
  auto mixture = std::make_shared<std::vector<std::byte>>(request.bytes.size() + 4096);
  const auto misaligned = reinterpret_cast<std::uintptr_t>(mixture->data()) % 4096;
  const std::span<std::byte> bytes(mixture->data() + (4096 - misaligned), request.bytes.size());
  const auto write_back = [this, request, mixture, bytes, error_number, done](RawResult) {
    for (std::size_t at = 0; at < bytes.size(); at += kSectorBytes) {
      const std::size_t size = std::min(kSectorBytes, bytes.size() - at);
      const std::lock_guard lock(mutex_);
      if (sectors_.below(2) == 0) continue;
      std::copy_n(request.bytes.begin() + static_cast<std::ptrdiff_t>(at), size,
                  bytes.begin() + static_cast<std::ptrdiff_t>(at));
    }
    inner_->submit({IoKind::kWrite, request.offset, bytes},
                   [mixture, error_number, done](RawResult) {
                     done({error_number, 0});
                   });
  };
  inner_->submit({IoKind::kRead, request.offset, bytes}, write_back);
}

// While completions are reordered, one is sent once all outstanding ones have arrived.
void FaultIo::ended(Ended one) {
  std::unique_lock lock(mutex_);
  if (!order_) {
    --outstanding_;
    lock.unlock();
    return one.done(one.result);
  }
  shuffled_.push_back(std::move(one));
  while (!shuffled_.empty() && shuffled_.size() == outstanding_) {
    const auto chosen =
        static_cast<std::size_t>(order_->below(static_cast<std::int64_t>(shuffled_.size())));
    std::swap(shuffled_[chosen], shuffled_.back());
    const Ended next = std::move(shuffled_.back());
    shuffled_.pop_back();
    --outstanding_;
    lock.unlock();
    next.done(next.result);
    lock.lock();
  }
}

int FaultIo::flush() noexcept {
  std::unique_lock lock(mutex_);
  ++flushes_;
  const bool fails = flush_span_ && holds(*flush_span_, flushes_);
  const int error_number = flush_error_;
  lock.unlock();
  std::this_thread::sleep_for(flush_time_);
  return fails ? error_number : inner_->flush();
}

}  // namespace sluiceway::test
