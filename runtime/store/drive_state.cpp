#include "runtime/store/drive_state.h"

#include <algorithm>
#include <cassert>
#include <cerrno>
#include <cstdio>
#include <system_error>
#include <utility>

#include "kernels/base/check.h"

namespace sluiceway {
namespace {

constexpr int kMostDoublings = 8;  // Limit for the doubling of a pause.

bool is_transient(int error_number) noexcept {
  return error_number == EAGAIN || error_number == EINTR || error_number == ENOMEM;
}

}  // namespace

Drive::State::State(std::unique_ptr<RawIo> io, Options options)
    : options_(std::move(options)), io_(std::move(io)) {
  thread_.post([this] { run(); });
}

// Members are then destroyed in this order: our thread, which ends when nothing is in flight but
// may be inside submit() until then; the back end, which waits for the last handler; then
// everything that this handler still uses.
Drive::State::~State() {
  const Lock lock(mutex_);
  stopping_ = true;
  changed_.notify_all();
}

// ---- The table of requests ---------------------------------------------------------------------

Drive::State::Request& Drive::State::enter(const Lock& lock, Command command) {
  auto request = std::make_unique<Request>();
  request->command = std::move(command);
  request->begin = Clock::now();
  Request& entered = *request;
  requests_.emplace(&entered, std::move(request));
  wake_before(lock, entered.begin + options_.stuck_after);
  return entered;
}

void Drive::State::leave(const Lock&, const Request& request) noexcept {
  requests_.erase(&request);
  if (stopping_ && requests_.empty()) changed_.notify_all();
}

// Most deadlines are later than that of an older request, which our thread already waits for.
void Drive::State::wake_before(const Lock&, Clock::time_point due) noexcept {
  if (due >= wake_at_) return;
  wake_at_ = due;
  changed_.notify_all();
}

void Drive::State::check_usable() const {
  const Lock lock(mutex_);
  if (poison_) throw IoError(*poison_);
}

Drive::Counters Drive::State::counters() const {
  const Lock lock(mutex_);
  return counters_;
}

std::size_t Drive::State::in_flight() const {
  const Lock lock(mutex_);
  return requests_.size();
}

// ---- Requests ----------------------------------------------------------------------------------

void Drive::State::start(Command command) {
  Lock lock(mutex_);
  Request& request = enter(lock, std::move(command));
  if (poison_ || request.command.bytes.empty()) {
    request.waits_for = WaitsFor::kEnd;
    wake_before(lock, Clock::time_point::min());
    return;
  }
  lock.unlock();
  submit(request);
}

void Drive::State::flush() {
  Lock lock(mutex_);
  if (poison_) throw IoError(*poison_);
  Command command;
  command.kind = Kind::kFlush;
  const Request& request = enter(lock, std::move(command));
  lock.unlock();
  const int error_number = io_->flush();
  lock.lock();
  ++counters_.flushes;
  leave(lock, request);
  const std::string& path = io_->properties().path;
  if (error_number != 0) ++counters_.failed;
  if (error_number != 0 && !poison_) {
    poison_.emplace(concat("drive: a flush of ", path,
                           " failed: ", std::generic_category().message(error_number),
                           "; it is unknown which completed writes are on the medium; close the "
                           "store, and reopen it at its last commit"),
                    error_number, path, 0);
  }
  // Also throws when another flush failed, because the system reports each error only once.
  if (poison_) throw IoError(*poison_);
}

void Drive::State::submit(Request& request) noexcept {
  const Command& command = request.command;
  const RawRequest raw{command.kind == Kind::kRead ? IoKind::kRead : IoKind::kWrite,
                       command.offset + request.moved, command.bytes.subspan(request.moved)};
  try {
    io_->submit(raw, [this, &request](RawResult result) { completed(request, result); });
  } catch (...) {  // No memory for the request.
    completed(request, {ENOMEM, 0});
  }
}

void Drive::State::completed(Request& request, RawResult result) noexcept {
  if (result.error_number != 0) {
    failed(request, result.error_number);
  } else {
    moved(request, result.bytes);
  }
}

void Drive::State::moved(Request& request, std::size_t bytes) noexcept {
  const bool reads = request.command.kind == Kind::kRead;
  const std::size_t asked = request.command.bytes.size();
  const std::size_t end_of_bytes = request.moved + bytes;
  assert(end_of_bytes <= asked);
  const std::size_t unit =
      std::max(io_->properties().offset_alignment, io_->properties().address_alignment);
  const std::size_t aligned = end_of_bytes / unit * unit;
  const bool whole = end_of_bytes == asked;
  {
    const Lock lock(mutex_);
    (reads ? counters_.bytes_read : counters_.bytes_written) += bytes;
    if (!whole && aligned > request.moved) ++counters_.resumed;
  }
  if (whole) return end(request, nullptr);
  if (reads && bytes == 0) return give_up(request, ENODATA, "the drive ends there");
  if (aligned == request.moved) return failed(request, EAGAIN);
  request.moved = aligned;
  request.transient = 0;
  submit(request);
}

void Drive::State::failed(Request& request, int error_number) noexcept {
  const std::string text = std::generic_category().message(error_number);
  if (error_number == EIO && request.command.kind == Kind::kRead) {
    if (++request.read_errors < options_.read_tries) return pause(request, request.read_errors);
    return give_up(request, error_number, concat(text, ", after ", request.read_errors, " tries"));
  }
  if (!is_transient(error_number)) return give_up(request, error_number, text);
  if (++request.transient <= options_.transient_tries) return pause(request, request.transient);
  give_up(request, error_number, concat(text, ", after ", request.transient, " tries"));
}

void Drive::State::pause(Request& request, int tries) noexcept {
  const Lock lock(mutex_);
  ++counters_.retries;
  request.waits_for = WaitsFor::kPause;
  request.due = Clock::now() + options_.first_pause * (1 << std::min(tries - 1, kMostDoublings));
  wake_before(lock, request.due);
}

void Drive::State::give_up(Request& request, int error_number, std::string_view why) noexcept {
  const IoError error(concat("drive: ", describe(request), ": ", why, "; ", request.moved,
                             " bytes were transferred"),
                      error_number, io_->properties().path,
                      static_cast<std::int64_t>(request.command.offset + request.moved));
  end(request, &error);
}

void Drive::State::end(Request& request, const IoError* error) noexcept {
  {
    const Lock lock(mutex_);
    ++(request.command.kind == Kind::kRead ? counters_.reads : counters_.writes);
    if (error != nullptr) ++counters_.failed;
  }
  {
    const Done done = std::move(request.command.done);
    done(error);
  }  // Frees what the handler holds before the request counts as gone.
  const Lock lock(mutex_);
  leave(lock, request);
}

std::string Drive::State::describe(const Request& request) const {
  const Command& command = request.command;
  if (command.kind == Kind::kFlush) return "flush of " + io_->properties().path;
  return concat(command.kind == Kind::kRead ? "read of " : "write of ", command.name, ", ",
                format_bytes(command.bytes.size()), " at byte ", command.offset, " of ",
                io_->properties().path);
}

// ---- Our thread --------------------------------------------------------------------------------

void Drive::State::run() noexcept {
  Lock lock(mutex_);
  while (!stopping_ || !requests_.empty()) {
    const Clock::time_point now = Clock::now();
    if (Request* const request = due(lock, now)) {
      const bool paused = std::exchange(request->waits_for, WaitsFor::kSystem) == WaitsFor::kPause;
      const IoError* const error = poison_ ? &*poison_ : nullptr;
      lock.unlock();
      if (paused) {
        submit(*request);
      } else {
        end(*request, error);
      }
      lock.lock();
    } else if (const std::optional<std::string> line = stuck(lock, now)) {
      lock.unlock();
      if (options_.report) {
        options_.report(*line);
      } else {
        std::fprintf(stderr, "%s\n", line->c_str());
      }
      lock.lock();
    } else {
      sleep(lock);
    }
  }
}

Drive::State::Request* Drive::State::due(const Lock&, Clock::time_point now) noexcept {
  for (const auto& [key, request] : requests_) {
    if (request->waits_for == WaitsFor::kEnd) return request.get();
    if (request->waits_for == WaitsFor::kPause && request->due <= now) return request.get();
  }
  return nullptr;
}

std::optional<std::string> Drive::State::stuck(const Lock&, Clock::time_point now) {
  for (const auto& [key, request] : requests_) {
    if (request->reported || request->begin + options_.stuck_after > now) continue;
    request->reported = true;
    ++counters_.stuck;
    const std::chrono::duration<double> seconds = now - request->begin;
    return concat("drive: ", describe(*request), ": not completed after ", seconds.count(),
                  " s, expected at most ",
                  std::chrono::duration<double>(options_.stuck_after).count(),
                  " s; still waiting; check the kernel's log for the drive");
  }
  return std::nullopt;
}

void Drive::State::sleep(Lock& lock) {
  wake_at_ = Clock::time_point::max();
  for (const auto& [key, request] : requests_) {
    if (!request->reported) wake_at_ = std::min(wake_at_, request->begin + options_.stuck_after);
    if (request->waits_for == WaitsFor::kPause) wake_at_ = std::min(wake_at_, request->due);
  }
  if (wake_at_ == Clock::time_point::max()) {
    changed_.wait(lock);
  } else {
    changed_.wait_until(lock, wake_at_);
  }
}

}  // namespace sluiceway
