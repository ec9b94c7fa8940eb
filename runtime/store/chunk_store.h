// Chunks on disk that change by whole steps: a step is committed as one, or never was.
//
//   write ... write  commit(step)  write ... write  drop()  write ...  pin()
//
// A chunk is written beside what the last commit holds, never over it. commit() flushes all drives,
// writes one superblock and flushes that: whoever opens the store again, after any crash, finds the
// last commit whole. docs/store.md says what is flushed before what, and why that suffices.
//
// Every chunk is checked against its checksum when it is read. A chunk that cannot be written goes
// to a spare; one that cannot be read is an error, and never an older content.
//
//   S1  What a commit holds is not written to before another commit is on the medium.
//   S2  commit() that throws has changed nothing that was committed; where it cannot be known
//       whether the new one is on the medium, every later call says so until the store is reopened.
//   S3  A pinned commit stays readable until another pin, or unpin(), is on the medium.
//
// Unfit for chunks that are read while they are written: one request at a time for each chunk.
//
// Ownership:     owns its drives; ~ChunkStore() waits for requests in flight and drops what is not
//                committed.
// Thread safety: read() and write() from any thread, and from their handlers; every other call from
//                one thread, while no other call is made.
// Lifetime:      the bytes of a request live until its handler is called.
// Errors:        InvalidArgument: a chunk that there is not, or that was never written. Corrupt:
//                bytes that do not match their checksum. IoError: path, offset and errno.
#pragma once

#include <cstddef>
#include <cstdint>
#include <exception>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "kernels/base/error.h"
#include "runtime/memory/budget.h"
#include "runtime/store/chunk_map.h"
#include "runtime/store/drive.h"
#include "runtime/store/format.h"
#include "runtime/store/layout.h"

namespace sluiceway {

// Which content of a chunk: that of the last commit, of the pinned one, or what was written since.
enum class Version : std::uint8_t { kLive, kPinned, kStaged };

class ChunkStore {
 public:
  using Drives = std::vector<std::unique_ptr<Drive>>;
  // `error` is null when all went well. Runs on a thread of a drive;
  // must not throw, and must not wait for another request.
  using Done = std::function<void(std::exception_ptr error)>;
  // Told after every piece that is written once: bytes done, bytes in all.
  using Progress = std::function<void(std::uint64_t done, std::uint64_t all)>;

  // Makes a store of `layout` on drives that are large enough, one a share. Everything is written
  // once, so that no later write has to allocate; the first commit, of step 0, holds no chunk.
  static std::unique_ptr<ChunkStore> create(Budget& budget, Drives drives, const Layout& layout,
                                            const Progress& progress = {});

  // Opens the last commit. Corrupt: damaged. InvalidArgument: not a store, drives of several
  // stores, or in the wrong order.
  static std::unique_ptr<ChunkStore> open(Budget& budget, Drives drives);

  // Host memory that the tables of a store take while it is open.
  static std::uint64_t table_bytes(const Layout& layout) noexcept;

  // Whether a file or device begins as a drive of a store does. IoError: it cannot be read.
  static bool is_drive(const std::string& path);

  ChunkStore(const ChunkStore&) = delete;
  ChunkStore& operator=(const ChunkStore&) = delete;
  ~ChunkStore();

  // Whole blocks, from the start of the chunk; a read takes as many as were written.
  void read(ChunkId id, Version version, std::span<std::byte> into, Done done);
  void write(ChunkId id, std::span<const std::byte> from, Done done);
  // Slot `slot` of a chunk of gradients.
  void read_extent(ChunkId id, std::uint64_t slot, std::span<std::byte> into, Done done);
  void write_extent(ChunkId id, std::uint64_t slot, std::span<const std::byte> from, Done done);

  // Waits for requests in flight. `run_state`: at most what the layout has room for.
  void commit(std::uint64_t step, std::span<const std::byte> run_state);
  void drop();    // Forgets every write since the last commit.
  void pin();     // Of the last commit, in place of what is pinned now.
  void unpin();   // Nothing stays but the last commit.
  void revert();  // The pinned commit is the last one again; it stays pinned.

  // Extents of more micro-batches, or a third slot before pin(). IoError, with both byte counts,
  // when there is no room; nothing was changed. What was written stays staged.
  void add_slots(std::uint32_t region, std::uint32_t more);

  const StoreId& id() const noexcept { return superblock_.id; }
  const Layout& layout() const noexcept { return layout_; }
  const Commit& live() const noexcept { return superblock_.live; }
  const std::optional<Commit>& pinned() const noexcept { return superblock_.pinned; }
  std::uint64_t generation() const noexcept { return superblock_.generation; }
  std::vector<std::byte> run_state(const Commit& commit);
  std::uint64_t written_bytes(ChunkId id, Version version) const;  // 0: it was never written.
  const std::string& damage() const noexcept { return damage_; }   // Of one superblock copy.
  const Drives& drives() const noexcept { return drives_; }
  std::uint64_t relocated() const;  // Chunks that went to a spare since it was opened.

  // Reads every chunk and the run state of the last commit and of the pinned one; what is wrong, a
  // line each. `progress` counts chunks; what it throws ends the reading.
  std::vector<std::string> verify(const Progress& progress = {});

 private:
  struct Requests;
  struct Verification;
  ChunkStore(Budget& budget, Drives drives, Superblock superblock, Layout layout,
             std::vector<Extent> live, std::optional<std::vector<Extent>> pinned);

  Extent extent_of(ChunkId id, Version version) const;
  void start_write(const char* caller, ChunkId id, std::optional<std::uint64_t> slot,
                   std::span<const std::byte> from, Done done);
  void submit_write(ChunkId id, std::optional<std::uint64_t> slot, Place place,
                    std::span<const std::byte> from, std::uint64_t checksum, Done done);
  void submit_read(const Extent& entry, const std::string& name, std::span<std::byte> into,
                   Done done);
  void wait_idle();
  void check_usable(const char* caller) const;
  void check_write(const char* caller, ChunkId id, std::size_t bytes) const;
  Extent write_meta(const MetaSlots& slots, const Extent Commit::*which,
                    std::span<const std::byte> bytes, std::string_view name);
  Superblock next_superblock() const;
  void write_superblock(const Superblock& next);
  std::string name_of(ChunkId id) const;

  Drives drives_;
  Superblock superblock_;
  Layout layout_;
  Budget::Reservation tables_;
  std::string damage_;
  std::string unusable_;  // Empty, or why the store has to be opened again.
  std::unique_ptr<Requests> requests_;
};

}  // namespace sluiceway
