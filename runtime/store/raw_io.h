// One open drive as the system shows it: takes aligned requests, returns one raw result for each.
//
// Short transfers and errors are reported as they come; drive.h is the layer that handles them.
// Requests beyond the depth wait in order of submission, so submit() never waits. No thread polls:
// each sleeps until there is something to do.
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
  std::size_t bytes = 0;  // Transferred, perhaps fewer than requested; 0 for a read at the end.
};

class RawIo {
 public:
  // Called once for each request, on a thread of the drive (never inside submit()), perhaps on
  // several at once. Must not throw, and must not wait for another request of this drive.
  using Done = std::function<void(RawResult)>;

  struct Properties {
    std::string path;
    std::string_view backend;              // "uring", "posix", "memory".
    std::size_t depth = 1;                 // Requests in the system at once.
    std::size_t offset_alignment = 4096;   // For the offset and length of a request.
    std::size_t address_alignment = 4096;  // For the memory of a request.
    bool direct = false;                   // Bypasses the page cache.
    bool block_device = false;             // A whole device, which cannot grow.
    std::size_t registered_bytes = 0;      // Memory that io_uring need not pin for each request.
    std::string note;  // One line for the user: why uring, or registered memory, is not used.
  };

  virtual ~RawIo() = default;
  RawIo(const RawIo&) = delete;
  RawIo& operator=(const RawIo&) = delete;

  // Throws only if there is no memory for the request; then `done` is never called.
  virtual void submit(const RawRequest& request, Done done) = 0;

  // Returns 0 when all writes completed before the call are on the medium, else errno.
  virtual int flush() noexcept = 0;

  // Grows the drive to at least `size_bytes`, with the room allocated. Returns 0, or errno with the
  // size unchanged.
  virtual int grow(std::uint64_t size_bytes) noexcept = 0;

  virtual std::uint64_t size_bytes() const noexcept = 0;

  // Returns the bytes from `offset` on, where the drive is host memory and holds them in one piece;
  // else nothing. They stay where they are when the drive grows.
  virtual std::span<std::byte> memory(std::uint64_t /*offset*/, std::size_t /*bytes*/) noexcept {
    return {};
  }

  const Properties& properties() const noexcept { return properties_; }

 protected:
  explicit RawIo(Properties properties) : properties_(std::move(properties)) {}
  Properties properties_;  // Does not change once the constructor has returned.
};

}  // namespace sluiceway
