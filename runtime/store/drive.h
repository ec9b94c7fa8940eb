// A drive whose every completion has been looked at: a request ends whole, or with an error.
//
//   short transfer            what is missing is submitted again, from an aligned offset
//   EAGAIN, EINTR, ENOMEM     again after a pause that doubles, `transient_tries` times without
//                             progress; then the error
//   EIO of a read             `read_tries` times, then the error
//   any other error           the error, at once
//   30 s without completion   one line to `report`; the request stays waited for
//   a failed flush            is never tried again: what is on the medium is unknown from then on,
//                             and every later call fails with the same words
//
// Ownership:     ~Drive() waits until the handler of every request has returned.
// Thread safety: every call from any thread, and read() and write() from handlers too. Handlers run
//                on threads of the drive, perhaps several at once. What a handler sees of its bytes
//                is published by a mutex of the back end.
// Lifetime:      the bytes of a request live until its handler is called.
// Errors:        InvalidArgument from read() and write(): offset, length or address is not aligned,
//                or the request ends beyond the drive; no handler is called. All else is an IoError
//                (path, offset, errno), given to the handler or thrown by the calls that wait.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <string_view>

#include "kernels/base/error.h"
#include "runtime/store/raw_io.h"

namespace sluiceway {

class Drive {
 public:
  // `error` is null when every byte was transferred; it lives as long as the call. Must not throw,
  // and must not wait for another request of this drive: that may be the only thread.
  using Done = std::function<void(const IoError* error)>;

  struct Options {
    std::chrono::milliseconds stuck_after{30'000};
    std::chrono::milliseconds first_pause{1};  // Doubles up to 256 of itself.
    int read_tries = 3;
    int transient_tries = 12;
    std::function<void(const std::string&)> report;  // Empty: a line on stderr. Must not throw.
  };

  // Bytes are those that the system said it transferred, in whole requests or in parts of them.
  struct Counters {
    std::uint64_t reads = 0;  // Requests that have ended, with or without an error.
    std::uint64_t writes = 0;
    std::uint64_t flushes = 0;
    std::uint64_t bytes_read = 0;
    std::uint64_t bytes_written = 0;
    std::uint64_t retries = 0;  // Submitted again after an error or a transfer of nothing.
    std::uint64_t resumed = 0;  // Submitted again for the rest of a short transfer.
    std::uint64_t stuck = 0;    // Reported.
    std::uint64_t failed = 0;   // Ended with an error, flushes included.
  };

  explicit Drive(std::unique_ptr<RawIo> io) : Drive(std::move(io), Options()) {}
  Drive(std::unique_ptr<RawIo> io, Options options);
  Drive(const Drive&) = delete;
  Drive& operator=(const Drive&) = delete;
  ~Drive();

  // `name` says in errors and reports what it is: "chunk 12 of state". An empty request is done by
  // a thread of the drive too.
  void read(std::uint64_t offset, std::span<std::byte> into, std::string_view name, Done done);
  void write(std::uint64_t offset, std::span<const std::byte> from, std::string_view name,
             Done done);

  // The same, and wait; not for handlers.
  void read_now(std::uint64_t offset, std::span<std::byte> into, std::string_view name);
  void write_now(std::uint64_t offset, std::span<const std::byte> from, std::string_view name);

  // Returns when every write whose handler was called before is on the medium.
  void flush();

  // Makes the drive that large at least. IoError with both byte counts; the size is what it was.
  void grow(std::uint64_t size_bytes);

  std::uint64_t size_bytes() const noexcept;
  const RawIo::Properties& properties() const noexcept;
  std::size_t alignment() const noexcept;  // Suits offset, length and address of a request.
  Counters counters() const;
  std::size_t in_flight() const;  // Requests whose handler has not returned.

 private:
  class State;
  std::unique_ptr<State> state_;
};

}  // namespace sluiceway
