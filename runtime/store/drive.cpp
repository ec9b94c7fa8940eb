#include "runtime/store/drive.h"

#include <algorithm>
#include <cerrno>
#include <condition_variable>
#include <mutex>
#include <optional>
#include <system_error>
#include <utility>

#include "kernels/base/check.h"
#include "runtime/store/drive_state.h"

namespace sluiceway {
namespace {

void check_request(const RawIo& io, IoKind kind, std::uint64_t offset,
                   std::span<const std::byte> bytes, std::string_view name) {
  const RawIo::Properties& drive = io.properties();
  const std::size_t unit = drive.offset_alignment;
  const auto address = reinterpret_cast<std::uintptr_t>(bytes.data());
  SLUICEWAY_CHECK(offset % unit == 0 && bytes.size() % unit == 0, "drive: ", to_string(kind),
                  " of ", name, ": ", bytes.size(), " bytes at byte ", offset, " of ", drive.path,
                  ", expected multiples of ", unit);
  SLUICEWAY_CHECK(bytes.empty() || address % drive.address_alignment == 0,
                  "drive: ", to_string(kind), " of ", name, ": memory at ",
                  static_cast<const void*>(bytes.data()), ", expected a multiple of ",
                  drive.address_alignment);
  const std::uint64_t size_bytes = io.size_bytes();
  SLUICEWAY_CHECK(offset <= size_bytes && bytes.size() <= size_bytes - offset,
                  "drive: ", to_string(kind), " of ", name, ": ", bytes.size(), " bytes at byte ",
                  offset, ", expected to end within the ", size_bytes, " bytes of ", drive.path);
}

// Waits for one request on the stack of its caller.
class Waiter {
 public:
  // Last action under the mutex, so that wait() may return and destroy this object.
  void end(const IoError* error) {
    const std::lock_guard lock(mutex_);
    if (error != nullptr) error_ = unshared(*error);
    ended_ = true;
    changed_.notify_one();
  }

  void wait() {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [this] { return ended_; });
    if (error_) throw IoError(*error_);
  }

 private:
  // Returns a copy with a text of its own. Copies of a std::runtime_error share a count inside the
  // standard library, where the thread sanitizer sees no order between the two threads.
  static IoError unshared(const IoError& error) {
    return {error.what(), error.error_number(), error.path(), error.offset()};
  }

  std::mutex mutex_;
  std::condition_variable changed_;
  std::optional<IoError> error_;
  bool ended_ = false;
};

}  // namespace

Drive::Drive(std::unique_ptr<RawIo> io, Options options)
    : state_(std::make_unique<State>(std::move(io), std::move(options))) {}

Drive::~Drive() = default;

void Drive::read(std::uint64_t offset, std::span<std::byte> into, std::string_view name,
                 Done done) {
  check_request(state_->io(), IoKind::kRead, offset, into, name);
  state_->start({.kind = State::Kind::kRead,
                 .offset = offset,
                 .bytes = into,
                 .name = std::string(name),
                 .done = std::move(done)});
}

void Drive::write(std::uint64_t offset, std::span<const std::byte> from, std::string_view name,
                  Done done) {
  check_request(state_->io(), IoKind::kWrite, offset, from, name);
  // RawRequest has one type for both directions; a write does not change its bytes.
  auto* const bytes = const_cast<std::byte*>(from.data());
  state_->start({.kind = State::Kind::kWrite,
                 .offset = offset,
                 .bytes = {bytes, from.size()},
                 .name = std::string(name),
                 .done = std::move(done)});
}

void Drive::read_now(std::uint64_t offset, std::span<std::byte> into, std::string_view name) {
  Waiter waiter;
  read(offset, into, name, [&](const IoError* error) { waiter.end(error); });
  waiter.wait();
}

void Drive::write_now(std::uint64_t offset, std::span<const std::byte> from,
                      std::string_view name) {
  Waiter waiter;
  write(offset, from, name, [&](const IoError* error) { waiter.end(error); });
  waiter.wait();
}

void Drive::flush() { state_->flush(); }

void Drive::grow(std::uint64_t size_bytes) {
  state_->check_usable();
  const std::uint64_t before = state_->io().size_bytes();
  const int error_number = state_->io().grow(size_bytes);
  if (error_number == 0) return;
  throw IoError(concat("drive: ", properties().path, " has ", format_bytes(before),
                       " and cannot grow to ", format_bytes(size_bytes), ": ",
                       std::generic_category().message(error_number), "; free space on it"),
                error_number, properties().path, static_cast<std::int64_t>(before));
}

std::uint64_t Drive::size_bytes() const noexcept { return state_->io().size_bytes(); }

std::span<std::byte> Drive::memory(std::uint64_t offset, std::size_t bytes) const noexcept {
  return state_->io().memory(offset, bytes);
}

const RawIo::Properties& Drive::properties() const noexcept { return state_->io().properties(); }

std::size_t Drive::alignment() const noexcept {
  return std::max(properties().offset_alignment, properties().address_alignment);
}

Drive::Counters Drive::counters() const { return state_->counters(); }

std::size_t Drive::in_flight() const { return state_->in_flight(); }

}  // namespace sluiceway
