// How a store moves from one commit to the next: commit(), drop(), pin(), revert(), add_slots().
//
// Order of a commit: write chunks, table and run state; flush all drives; write the superblock to
// the copy that does not hold the present one; flush the first drive. Until that returns, the
// present superblock and everything that it names are untouched.
#include <algorithm>
#include <utility>

#include "kernels/base/check.h"
#include "kernels/base/checksum.h"
#include "runtime/store/blocks.h"
#include "runtime/store/chunk_store.h"
#include "runtime/store/new_layout.h"
#include "runtime/store/store_requests.h"

namespace sluiceway {

void ChunkStore::commit(std::uint64_t step, std::span<const std::byte> run_state) {
  check_usable("commit");
  SLUICEWAY_CHECK(run_state.size() <= layout_.run_states.bytes, "store: the run state has ",
                  run_state.size(), " bytes, expected at most ", layout_.run_states.bytes);
  wait_idle();
  const std::vector<std::byte> table = encode(requests_->map.next_table());
  Superblock next = next_superblock();
  next.live = {next.generation, step,
               write_meta(layout_.tables, &Commit::table, table, "the table"),
               write_meta(layout_.run_states, &Commit::run_state, run_state, "the run state")};
  for (const auto& drive : drives_) drive->flush();
  write_superblock(next);
  requests_->map.commit();
}

void ChunkStore::drop() {
  check_usable("drop");
  wait_idle();
  requests_->map.drop();
}

void ChunkStore::pin() {
  check_usable("pin");
  for (const Region& region : layout_.regions) {
    SLUICEWAY_CHECK(
        !region.is_committed() || region.slots() != 2, "store: pin: the region of ",
        to_string(region.kind),
        " has 2 slots, expected 3 (one live, one pinned, one to write); call add_slots() first");
  }
  wait_idle();
  Superblock next = next_superblock();
  next.pinned = next.live;
  write_superblock(next);
  requests_->map.pin();
}

void ChunkStore::unpin() {
  check_usable("unpin");
  if (!superblock_.pinned) return;
  wait_idle();
  Superblock next = next_superblock();
  next.pinned.reset();
  write_superblock(next);
  requests_->map.unpin();
}

void ChunkStore::revert() {
  check_usable("revert");
  SLUICEWAY_CHECK(
      superblock_.pinned.has_value(),
      "store: revert: the store has no pinned commit; call pin() before the steps to undo");
  drop();
  Superblock next = next_superblock();
  next.live = *next.pinned;
  write_superblock(next);
  requests_->map.revert();
}

void ChunkStore::add_slots(std::uint32_t region, std::uint32_t more) {
  check_usable("add_slots");
  wait_idle();
  const Layout grown = with_more_slots(layout_, region, more);
  for (std::size_t d = 0; d < drives_.size(); ++d) drives_[d]->grow(grown.drives[d].bytes);
  const std::vector<std::byte> directory = encode(grown);
  Superblock next = next_superblock();
  next.directory = {grown_directory_place(grown), directory.size(), checksum64(directory)};
  Blocks blocks(directory);
  drives_.front()->write_now(next.directory.place.offset, blocks.all(), "the directory");
  for (const auto& drive : drives_) drive->flush();
  write_superblock(next);
  layout_ = grown;
  requests_->map.grown(layout_);
}

// Writes to a slot that neither the last nor the pinned commit holds.
Extent ChunkStore::write_meta(const MetaSlots& slots, const Extent Commit::*which,
                              std::span<const std::byte> bytes, std::string_view name) {
  const auto free = std::ranges::find_if(slots.base, [&](std::uint64_t base) {
    const auto holds = [&](const Commit& commit) { return (commit.*which).place.offset == base; };
    return !holds(superblock_.live) && !(superblock_.pinned && holds(*superblock_.pinned));
  });
  SLUICEWAY_CHECK(free != slots.base.end(), "store: ", name, " has no free slot among its ",
                  slots.base.size(), ", expected 3 slots");
  Blocks blocks(bytes);
  if (!bytes.empty()) drives_.front()->write_now(*free, blocks.all(), name);
  return {{0, *free}, bytes.size(), checksum64(bytes)};
}

Superblock ChunkStore::next_superblock() const {
  Superblock next = superblock_;
  ++next.generation;
  return next;
}

// If this throws, the superblock may or may not be on the medium; only reopening the store tells.
void ChunkStore::write_superblock(const Superblock& next) {
  const Block block = encode(next);
  Blocks blocks{std::span<const std::byte>(block)};
  const std::uint64_t copy = next.generation % 2;
  try {
    drives_.front()->write_now(kSuperblockOffset + copy * kBlockBytes, blocks.all(),
                               "the superblock");
    drives_.front()->flush();
  } catch (const Error& error) {
    unusable_ = concat("the superblock of generation ", next.generation,
                       " was written with an error, so it is unknown whether it is on the drive (",
                       error.what(), ")");
    throw;
  }
  superblock_ = next;
  damage_.clear();  // This write replaced the damaged copy.
}

}  // namespace sluiceway
