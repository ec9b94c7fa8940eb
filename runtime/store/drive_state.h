// The state of a Drive: its requests, and the thread that watches pauses and stuck requests.
//
// Thread safety: `mutex_` guards the table of requests, what each waits for, and the counters. The
//                progress of a request belongs to the back end between submit() and completed(),
//                otherwise to the one thread that handles the request.
#pragma once

#include <condition_variable>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>

#include "runtime/device/worker.h"
#include "runtime/store/drive.h"

namespace sluiceway {

class Drive::State {
 public:
  enum class Kind : std::uint8_t { kRead, kWrite, kFlush };

  struct Command {
    Kind kind = Kind::kRead;
    std::uint64_t offset = 0;
    std::span<std::byte> bytes;
    std::string name;
    Done done;
  };

  State(std::unique_ptr<RawIo> io, Options options);
  State(const State&) = delete;
  State& operator=(const State&) = delete;
  ~State();

  void start(Command command);  // A read or a write.
  void flush();
  void check_usable() const;  // Throws the error that made the drive unusable.
  RawIo& io() const noexcept { return *io_; }
  Counters counters() const;
  std::size_t in_flight() const;

 private:
  using Clock = std::chrono::steady_clock;
  using Lock = std::unique_lock<std::mutex>;

  enum class WaitsFor : std::uint8_t { kSystem, kPause, kEnd };  // kEnd: our thread ends it.

  struct Request {
    Command command;
    Clock::time_point begin;
    std::size_t moved = 0;  // Bytes at the front already transferred.
    int read_errors = 0;    // Number of EIO so far.
    int transient = 0;      // Consecutive tries that moved nothing.
    WaitsFor waits_for = WaitsFor::kSystem;
    Clock::time_point due;  // End of a pause.
    bool reported = false;
  };

  Request& enter(const Lock&, Command command);
  void leave(const Lock&, const Request& request) noexcept;
  void wake_before(const Lock&, Clock::time_point due) noexcept;

  void submit(Request& request) noexcept;
  void completed(Request& request, RawResult result) noexcept;
  void moved(Request& request, std::size_t bytes) noexcept;
  void failed(Request& request, int error_number) noexcept;
  void pause(Request& request, int tries) noexcept;
  void give_up(Request& request, int error_number, std::string_view why) noexcept;
  void end(Request& request, const IoError* error) noexcept;
  std::string describe(const Request& request) const;

  void run() noexcept;
  Request* due(const Lock&, Clock::time_point now) noexcept;
  std::optional<std::string> stuck(const Lock&, Clock::time_point now);
  void sleep(Lock& lock);

  const Options options_;
  mutable std::mutex mutex_;
  std::condition_variable changed_;  // An earlier deadline, or the last request has left.
  std::map<const Request*, std::unique_ptr<Request>> requests_;
  Clock::time_point wake_at_ = Clock::time_point::max();  // When our thread looks again.
  Counters counters_;
  std::optional<IoError> poison_;  // Set once, by a failed flush; never reset.
  bool stopping_ = false;
  std::unique_ptr<RawIo> io_;
  Worker thread_{{.name = "drive"}};  // Declared last, and io_ before it: see ~State().
};

}  // namespace sluiceway
