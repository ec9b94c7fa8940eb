// Chunks on disk that change in whole steps: a step is committed completely or not at all.
//
//   write ... write  commit(step)  write ... write  drop()  write ...  pin()
//
// A chunk is never written over its content in the last commit, but beside it. commit() flushes all
// drives, writes one superblock and flushes that. After any crash, whoever opens the store again
// finds the last commit whole. docs/store.md gives the order of the flushes and why it suffices.
//
// Every chunk is checked against its checksum when it is read. A chunk that cannot be written goes
// to a spare. A chunk that cannot be read is an error; older content is never returned instead.
//
//   S1  Nothing that a commit holds is overwritten before another commit is on the medium.
//   S2  If commit() throws, nothing committed has changed. If the new commit may or may not be on
//       the medium, every later call reports that until the store is reopened.
//   S3  A pinned commit stays readable until another pin(), or unpin(), is on the medium.
//
// Do not read a chunk while it is written: allow one request at a time for each chunk.
//
// Ownership:     owns its drives; ~ChunkStore() waits for requests in flight and drops everything
//                not committed.
// Thread safety: read() and write() may be called from any thread and from their handlers; every
//                other call from one thread, while no other call runs.
// Lifetime:      the bytes of a request live until its handler is called.
// Errors:        InvalidArgument: a chunk that does not exist or was never written. Corrupt: bytes
//                that do not match their checksum. IoError: path, offset and errno.
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

// Selects the content of a chunk: in the last commit, in the pinned commit, or written since.
enum class Version : std::uint8_t { kLive, kPinned, kStaged };

class ChunkStore {
 public:
  using Drives = std::vector<std::unique_ptr<Drive>>;
  // `error` is null on success. Runs on a thread of a drive; must not throw, and must not wait for
  // another request.
  using Done = std::function<void(std::exception_ptr error)>;
  // Called after each piece of the first full write: bytes done, bytes in total.
  using Progress = std::function<void(std::uint64_t done, std::uint64_t all)>;

  // Makes a store of `layout`. `drives` has one drive per entry of layout.drives, each large
  // enough. Writes every block once, so that no later write has to allocate. The first commit, of
  // step 0, holds no chunk.
  static std::unique_ptr<ChunkStore> create(Budget& budget, Drives drives, const Layout& layout,
                                            const Progress& progress = {});

  // Opens the last commit. Corrupt: damaged. InvalidArgument: not a store, or drives from several
  // stores or in the wrong order.
  static std::unique_ptr<ChunkStore> open(Budget& budget, Drives drives);

  // Returns the host memory that the tables of an open store take.
  static std::uint64_t table_bytes(const Layout& layout) noexcept;

  // Returns whether a file or device begins like a drive of a store. IoError: it cannot be read.
  static bool is_drive(const std::string& path);

  ChunkStore(const ChunkStore&) = delete;
  ChunkStore& operator=(const ChunkStore&) = delete;
  ~ChunkStore();

  // Sizes are whole blocks from the start of the chunk; read exactly as many bytes as were written.
  void read(ChunkId id, Version version, std::span<std::byte> into, Done done);
  void write(ChunkId id, std::span<const std::byte> from, Done done);
  // Access slot `slot` of a gradient chunk.
  void read_extent(ChunkId id, std::uint64_t slot, std::span<std::byte> into, Done done);
  void write_extent(ChunkId id, std::uint64_t slot, std::span<const std::byte> from, Done done);

  // Returns the memory of a slot of a chunk, for a caller who reads and writes it directly, without
  // requests; nothing if the store is not in host memory. No commit, checksum or drop() knows of a
  // change. From any thread, but not beside a call that changes the store, such as add_slots().
  std::span<std::byte> memory(ChunkId id, std::uint64_t slot);

  // Waits for requests in flight. `run_state` must fit layout().run_states.bytes.
  void commit(std::uint64_t step, std::span<const std::byte> run_state);
  void drop();    // Forgets every write since the last commit.
  void pin();     // Pins the last commit, in place of the one pinned now.
  void unpin();   // Keeps only the last commit.
  void revert();  // Makes the pinned commit the last one again; it stays pinned.

  // Adds extents for more micro-batches, or a third slot before pin(). IoError, with both byte
  // counts, when there is no room; then nothing changes. Staged writes stay staged.
  void add_slots(std::uint32_t region, std::uint32_t more);

  const StoreId& id() const noexcept { return superblock_.id; }
  const Layout& layout() const noexcept { return layout_; }
  const Commit& live() const noexcept { return superblock_.live; }
  const std::optional<Commit>& pinned() const noexcept { return superblock_.pinned; }
  std::uint64_t generation() const noexcept { return superblock_.generation; }
  std::vector<std::byte> run_state(const Commit& commit);
  std::uint64_t written_bytes(ChunkId id, Version version) const;  // 0: it was never written.
  const std::string& damage() const noexcept { return damage_; }   // Found in one superblock.
  const Drives& drives() const noexcept { return drives_; }
  bool is_in_memory() const noexcept;  // It ends with the process.
  std::uint64_t relocated() const;     // Chunks that went to a spare since the store was opened.

  // Reads every chunk and the run state of the last and the pinned commit. Returns one line for
  // each error found. `progress` counts chunks; an exception from it ends the reading.
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
  std::string unusable_;  // Empty, or the reason why the store must be reopened.
  std::unique_ptr<Requests> requests_;
};

}  // namespace sluiceway
