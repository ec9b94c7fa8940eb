// One opened drive as the system shows it: aligned requests in, one raw result each out.
//
// A short transfer or an error is reported as it came; drive.h is the layer that handles them. What
// exceeds the depth waits in order of submission, so submit() never waits. No thread polls: each
// sleeps until there is something to do.
//
// Ownership:     ~RawIo() waits until the handler of every request has returned; no handler may
//                destroy its own drive.
// Thread safety: every call from any thread, handlers included.
// Lifetime:      the bytes of a request live until its handler is called.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <string_view>
#include <utility>

namespace sluiceway {

enum class IoKind : std::uint8_t { kRead, kWrite };
std::string_view to_string(IoKind kind) noexcept;  // "read", "write".

struct RawRequest {
  IoKind kind = IoKind::kRead;
  std::uint64_t offset = 0;    // Bytes from the start of the drive.
  std::span<std::byte> bytes;  // Filled by a read; a write leaves them alone.
};

struct RawResult {
  int error_number = 0;   // errno, or 0.
  std::size_t bytes = 0;  // Transferred, perhaps fewer than asked for; a read of 0: the drive ends.
};

class RawIo {
 public:
  // Called once for each request, on a thread of the drive (never inside submit()), perhaps on
  // several at once. Must not throw, and must not wait for another request of this drive.
  using Done = std::function<void(RawResult)>;

  struct Properties {
    std::string path;
    std::string_view backend;              // "uring", "posix", "memory".
    std::size_t depth = 1;                 // Requests that the system is given at once.
    std::size_t offset_alignment = 4096;   // Of a request's offset and length.
    std::size_t address_alignment = 4096;  // Of a request's memory.
    bool direct = false;                   // Bypasses the page cache.
    bool block_device = false;             // A whole device: cannot grow.
    std::size_t registered_bytes = 0;      // Memory that io_uring need not pin for each request.
    std::string note;  // One line a user should see: why uring, or registered memory, is not used.
  };

  virtual ~RawIo() = default;
  RawIo(const RawIo&) = delete;
  RawIo& operator=(const RawIo&) = delete;

  // Throws only if there is no memory for the request; `done` is then never called.
  virtual void submit(const RawRequest& request, Done done) = 0;

  // Writes that had completed before the call are on the medium when it returns 0, else errno.
  virtual int flush() noexcept = 0;

  // Makes the drive `size_bytes` large at least, with the room allocated. Returns 0, or errno: then
  // the size is what it was.
  virtual int grow(std::uint64_t size_bytes) noexcept = 0;

  virtual std::uint64_t size_bytes() const noexcept = 0;

  const Properties& properties() const noexcept { return properties_; }

 protected:
  explicit RawIo(Properties properties) : properties_(std::move(properties)) {}
  Properties properties_;  // Does not change once the constructor has returned.
};

}  // namespace sluiceway
