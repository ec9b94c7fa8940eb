// The base of a zeroth-order run in a store: generations of weights that a step only reads.
//
//   create / open    read ... read    consolidate    read ... read    commit    read ...
//
// A generation is all weights at theta of one step; their hash is `base().base.hash`. consolidate()
// writes the next one beside it, and links it to its scalar log (docs/zo_log.md, section 4):
// announce, commit, adopt. After a crash at any moment, whoever opens arena and log finds the old
// base with all updates pending, or the new one. A step writes nothing.
//
//   A1  If consolidate() throws, the arena has its old base, and the log its steps: call it again.
//       If a drive rejected a write, its slots stay unused until the arena is reopened. If it is
//       unknown whether the commit is on the medium, every later call says to reopen the arena.
//   A2  The bits of a new base follow only from the old one, the log's updates, run seed and step.
//   A3  Host memory of a pass is kPassBuffers chunks, whatever the size of the model.
//
// A commit stores, beside the chunks, which theta they hold and the run's own bytes (ArenaState;
// docs/zo_log.md section 6 has the grammar).
//
// Ownership:     owns the store.
// Thread safety: read() from any thread, at any time; every other call from one thread. Data read
//                before consolidate() returned belong to the old base; a caller that reads ahead
//                drops them.
// Lifetime:      the budget outlives it. ~ZoArena() waits for reads in flight.
// Errors:        InvalidArgument: other weights, another log, a step that is not pending; nothing
//                was changed. Corrupt: bytes that do not match their checksum, with the weight and
//                the chunk; a state that encode() does not produce. Unavailable: a version of the
//                state that this build does not read. IoError: path, offset, errno. OutOfMemory:
//                the budget.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "runtime/engine/stream/ring_client.h"
#include "runtime/engine/zo/arena_pass.h"
#include "runtime/engine/zo/arena_plan.h"
#include "runtime/engine/zo/range_team.h"
#include "runtime/engine/zo/scalar_log.h"
#include "runtime/memory/budget.h"
#include "runtime/store/store_options.h"
#include "runtime/store/store_room.h"

namespace sluiceway {

class LogTheta;

inline constexpr std::uint32_t kArenaStateVersion = 1;
inline constexpr std::uint64_t kArenaStateBytes = 80;  // Without the run's own bytes.

struct ArenaState {
  ArenaBase arena;
  std::vector<std::byte> run;  // What the run needs to continue; opaque.
};

std::vector<std::byte> encode(const ArenaState& state);
ArenaState decode_arena_state(std::span<const std::byte> bytes);

// Returns the bytes that identify a weight in a base's hash; they precede its content.
std::vector<std::byte> hashed_header(const ArenaWeight& weight);

// Memory of an arena, computed without making one; errors as in ArenaPlan.
struct ArenaFootprint {
  std::uint64_t base_bytes = 0;     // All weights, in whole blocks: read in a pass over them.
  std::uint64_t store_bytes = 0;    // On disk: the base, and room for the next one beside it.
  std::uint64_t table_bytes = 0;    // Host memory while the arena is open,
  std::uint64_t pass_bytes = 0;     // and more while a new base is made.
  std::uint64_t largest_bytes = 0;  // The largest weight; needed to hold one whole.
};

ArenaFootprint arena_footprint(std::vector<ArenaWeight> weights, std::uint64_t chunk_bytes);

struct ArenaOptions {
  StoreOptions store;
  std::uint64_t chunk_bytes = std::uint64_t{4} << 20;  // For large weights; whole blocks.
  int threads = 1;                                     // For the arithmetic of consolidate().
  std::span<std::byte> memory{};  // Offered to io_uring for reads into it; outlives the arena.
};

class ZoArena final : public WeightSource {
 public:
  // Fills `into` with a weight's bytes from byte `first` on. Called with whole elements, for
  // weights in order and for each weight from start to end.
  using Fill =
      std::function<void(std::size_t weight, std::uint64_t first, std::span<std::byte> into)>;
  // Gets bytes done and bytes in total. An exception ends the call, and nothing was changed.
  using Progress = std::function<void(std::uint64_t done, std::uint64_t all)>;

  // Makes generation 1, at step 0 and without a log. Repeats an interrupted making, for which
  // open() finds nothing. InvalidArgument: an arena exists already.
  static std::unique_ptr<ZoArena> create(Budget& budget, const ArenaOptions& options,
                                         std::vector<ArenaWeight> weights, const Fill& fill,
                                         std::span<const std::byte> run_state = {},
                                         const Progress& progress = {});
  // Opens the last generation. Null: nothing exists, or making the arena was interrupted.
  static std::unique_ptr<ZoArena> open(Budget& budget, const ArenaOptions& options,
                                       std::vector<ArenaWeight> weights);

  ZoArena(const ZoArena&) = delete;
  ZoArena& operator=(const ZoArena&) = delete;
  ~ZoArena() override;

  const std::vector<ArenaWeight>& weights() const noexcept { return plan_.weights(); }
  const ArenaBase& base() const noexcept { return state_.arena; }
  // The run's own bytes in the last commit.
  const std::vector<std::byte>& run_state() const noexcept { return state_.run; }
  const ChunkStore& store() const noexcept { return *store_; }

  std::uint64_t read_bytes(std::size_t weight) const override { return plan_.stored_bytes(weight); }
  // Reads the last generation; zeros follow the weight's own bytes.
  void read(std::size_t weight, std::span<std::byte> into, Done done) override;

  // Commits the same base with new bytes of the run.
  void commit(std::span<const std::byte> run_state);

  struct Consolidation {
    std::optional<std::uint64_t> step = {};  // None: all updates.
    std::span<const std::byte> run_state{};  // Committed with the new generation.
    Progress progress = {};
  };
  // Makes theta of a step the base of the arena and the log; updates from that step on stay
  // pending. If no update precedes it, only the run state is committed.
  void consolidate(ScalarLog& log, const Consolidation& how);

 private:
  struct ReadRequest;
  struct Reads;
  class Quiet;
  ZoArena(Budget& budget, const ArenaOptions& options, std::vector<ArenaWeight> weights);

  bool has_base() const;
  void start(const ReadRequest& request);
  void load();
  void make(const Fill& fill, std::span<const std::byte> run_state, const Progress& progress);
  void check_room(std::span<const std::byte> run_state) const;
  void commit_state(ArenaState state);
  void drop() noexcept;
  void to_theta(const LogTheta& theta, const ArenaPiece& piece, std::span<std::byte> blocks);

  Budget& budget_;
  ArenaPlan plan_;
  RangeTeam team_;
  StoreRoom room_;
  std::unique_ptr<Reads> reads_;
  std::unique_ptr<ChunkStore> store_;
  ArenaState state_;
};

}  // namespace sluiceway
