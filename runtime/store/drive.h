// A drive that checks every completion: each request ends either complete or with an error.
//
//   short transfer            the rest is submitted again, from an aligned offset
//   EAGAIN, EINTR, ENOMEM     tried again after a pause that doubles, `transient_tries` times
//                             without progress; then the error
//   EIO of a read             tried `read_tries` times, then the error
//   any other error           the error, at once
//   30 s without completion   one line to `report`; the drive still waits for the request
//   a failed flush            never tried again: the content of the medium is unknown from then on,
//                             and every later call fails with the same text
//
// Ownership:     ~Drive() waits until the handler of every request has returned.
// Thread safety: every call from any thread; read() and write() from handlers too. Handlers run on
//                threads of the drive, perhaps several at once. A mutex of the back end publishes
//                the bytes that a handler sees.
// Lifetime:      the bytes of a request live until its handler is called.
// Errors:        InvalidArgument from read() and write(): offset, length or address is not aligned,
//                or the request ends beyond the drive; no handler is called. Every other error is
//                an IoError (path, offset, errno), passed to the handler or thrown by the calls
//                that wait.
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
  // `error` is null when every byte was transferred; it lives only during the call. A handler must
  // not throw, and must not wait for another request of this drive: its thread may be the only one.
  using Done = std::function<void(const IoError* error)>;

  struct Options {
    std::chrono::milliseconds stuck_after{30'000};
    std::chrono::milliseconds first_pause{1};  // Doubles, at most to 256 times this.
    int read_tries = 3;
    int transient_tries = 12;
    std::function<void(const std::string&)> report;  // Empty: a line on stderr. Must not throw.
  };

  // Byte counts are those that the system reported as transferred, in whole or partial requests.
  struct Counters {
    std::uint64_t reads = 0;  // Requests that have ended, with or without an error.
    std::uint64_t writes = 0;
    std::uint64_t flushes = 0;
    std::uint64_t bytes_read = 0;
    std::uint64_t bytes_written = 0;
    std::uint64_t retries = 0;  // Submitted again after an error or an empty transfer.
    std::uint64_t resumed = 0;  // Submitted again for the rest of a short transfer.
    std::uint64_t stuck = 0;    // Requests reported as stuck.
    std::uint64_t failed = 0;   // Ended with an error, flushes included.
  };

  explicit Drive(std::unique_ptr<RawIo> io) : Drive(std::move(io), Options()) {}
  Drive(std::unique_ptr<RawIo> io, Options options);
  Drive(const Drive&) = delete;
  Drive& operator=(const Drive&) = delete;
  ~Drive();

  // `name` identifies the request in errors and reports: "chunk 12 of state". An empty request also
  // completes on a thread of the drive.
  void read(std::uint64_t offset, std::span<std::byte> into, std::string_view name, Done done);
  void write(std::uint64_t offset, std::span<const std::byte> from, std::string_view name,
             Done done);

  // Same as read() and write(), but wait for the request; not for handlers.
  void read_now(std::uint64_t offset, std::span<std::byte> into, std::string_view name);
  void write_now(std::uint64_t offset, std::span<const std::byte> from, std::string_view name);

  // Returns when all writes whose handlers were called before this call are on the medium.
  void flush();

  // Grows the drive to at least `size_bytes`. On IoError (with both byte counts) the size is
  // unchanged.
  void grow(std::uint64_t size_bytes);

  std::uint64_t size_bytes() const noexcept;
  std::span<std::byte> memory(std::uint64_t offset, std::size_t bytes) const noexcept;  // raw_io.h
  const RawIo::Properties& properties() const noexcept;
  std::size_t alignment() const noexcept;  // Required alignment of offset, length and address.
  Counters counters() const;
  std::size_t in_flight() const;  // Requests whose handler has not returned.

 private:
  class State;
  std::unique_ptr<State> state_;
};

}  // namespace sluiceway
