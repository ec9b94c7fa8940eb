// Pieces of one page-locked slab, each of exactly the requested size, used to stage transfers.
//
// The slab is reserved in the budget and page-locked at construction; acquire() never allocates
// memory for payloads. A piece starts at the alignment that its lease requests: at least a cache
// line, a page for a disk that bypasses the page cache. Less than one line after it is wasted:
// nothing is rounded to a power of two, and bytes skipped by an alignment stay free for others.
// Free neighbours join again.
//
// Unfit for many small pieces with long and mixed lives: first fit would leave holes. Unfit for
// work that must not wait: waiters have no order, so a large piece may starve behind small ones.
// Unfit for direct disk I/O of odd lengths: only the start is aligned, so round the length up
// yourself.
//
// Ownership:     a Lease owns one piece; ~Lease() or retire() gives it back.
// Thread safety: the pool may be called from any thread, a Lease from one thread at a time. Waiters
//                in acquire() are served when there is room, in no promised order.
// Lifetime:      the pool outlives its leases; ~PinnedPool() waits for retiring leases and
//                terminates if one is still held.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string_view>

#include "runtime/device/event.h"
#include "runtime/memory/buffer.h"

namespace sluiceway {

class PinnedPool {
  struct State;

 public:
  // Pieces are whole cache lines, so that no two share one.
  static constexpr std::size_t kPieceBytes = 64;

  struct Config {
    std::size_t slab_bytes = std::size_t{64} << 20;
    Pages pages =
        Pages::kOrdinary;  // kHuge, for disks: as many as the system has, see huge_bytes().
    std::uint64_t first_generation = 1;  // First number of the count; tests start near its end.
  };

  class Lease {  // Move-only. A moved-from or retired Lease is empty: bytes() has size 0.
   public:
    Lease(Lease&& other) noexcept;
    Lease& operator=(Lease&& other) noexcept;
    ~Lease();  // Reusable at once: no copy or disk request may still use the piece.

    // Gives the piece back when `done` happens, and empties this Lease. Does not wait.
    void retire(const Event& done) noexcept;
    std::span<std::byte> bytes() const noexcept { return bytes_; }

    // Identifies this use of the piece; 0 for an empty Lease, never for another. If a completion
    // carries a generation for which is_current() is false, it belongs to a previous owner.
    std::uint64_t generation() const noexcept { return generation_; }

   private:
    friend class PinnedPool;
    Lease(std::shared_ptr<State> state, std::span<std::byte> bytes,
          std::uint64_t generation) noexcept;
    std::shared_ptr<State> state_;
    std::span<std::byte> bytes_;
    std::uint64_t generation_ = 0;
  };

  // Throws OutOfMemory with both byte counts, InvalidArgument for an empty slab.
  PinnedPool(Budget& budget, DeviceId device, Config config);
  PinnedPool(const PinnedPool&) = delete;
  PinnedPool& operator=(const PinnedPool&) = delete;
  ~PinnedPool();

  // `name` identifies the piece in a Timeout. Waits up to `timeout` for room. `alignment` of the
  // first byte is a power of two, at most a page; values below a cache line mean a cache line.
  // Throws InvalidArgument for a size above the slab's or another alignment, and Timeout, which
  // lists the free bytes and every lease in flight.
  [[nodiscard]] Lease acquire(std::size_t bytes, std::string_view name,
                              std::chrono::milliseconds timeout,
                              std::size_t alignment = kPieceBytes);

  bool is_current(std::uint64_t generation) const;  // True while this lease is held.
  std::size_t in_flight() const;                    // Leases held or retiring.
  std::size_t in_flight_bytes() const;
  std::size_t slab_bytes() const noexcept;
  std::size_t huge_bytes() const;  // Bytes of the slab in huge pages now; reads /proc.

  // The whole slab, for registering it with a device; its contents belong to the leases.
  std::span<std::byte> slab() const noexcept;

 private:
  std::shared_ptr<State> state_;
};

}  // namespace sluiceway
