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
// Ownership:     owns the store.
// Thread safety: read() from any thread, at any time; every other call from one thread. Data read
//                before consolidate() returned belong to the old base; a caller that reads ahead
//                drops them.
// Lifetime:      the budget outlives it. ~ZoArena() waits for reads in flight.
// Errors:        InvalidArgument: other weights, another log, a step that is not pending; nothing
//                was changed. Corrupt: bytes that do not match their checksum, with the weight and
//                the chunk. IoError: path, offset, errno. OutOfMemory: the budget.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "runtime/engine/zo/arena_pass.h"
#include "runtime/engine/zo/arena_plan.h"
#include "runtime/engine/zo/arena_state.h"
#include "runtime/engine/zo/range_team.h"
#include "runtime/engine/zo/scalar_log.h"
#include "runtime/engine/zo/weight_source.h"
#include "runtime/memory/budget.h"
#include "runtime/store/store_options.h"
#include "runtime/store/store_room.h"

namespace sluiceway {

class LogTheta;

struct ArenaOptions {
  StoreOptions store;
  std::uint64_t chunk_bytes = std::uint64_t{4} << 20;  // Of a large weight's; whole blocks.
  int threads = 1;                // Of the arithmetic of consolidate() and export_step().
  std::span<std::byte> memory{};  // Offered to io_uring for reads into it; outlives the arena.
};

class ZoArena final : public WeightSource {
 public:
  // Fills `into` with the bytes of a weight from byte `first` on. Called for weights in their
  // order, and for the whole elements of a weight from its first to its last.
  using Fill =
      std::function<void(std::size_t weight, std::uint64_t first, std::span<std::byte> into)>;
  // Takes them, in the same order; the bytes are lent for the call.
  using Take = std::function<void(std::size_t weight, std::uint64_t first,
                                  std::span<const std::byte> bytes)>;
  // Bytes that are done, and all of them. What it throws ends the call, and nothing was changed.
  using Progress = std::function<void(std::uint64_t done, std::uint64_t all)>;

  // Generation 1, of step 0 and made with no log. A making that was interrupted is made again where
  // open() finds nothing. InvalidArgument: there is an arena already.
  static std::unique_ptr<ZoArena> create(Budget& budget, const ArenaOptions& options,
                                         std::vector<ArenaWeight> weights, const Fill& fill,
                                         std::span<const std::byte> run_state = {},
                                         const Progress& progress = {});
  // The last generation. Null: nothing is there, or an arena whose making was interrupted.
  static std::unique_ptr<ZoArena> open(Budget& budget, const ArenaOptions& options,
                                       std::vector<ArenaWeight> weights);

  ZoArena(const ZoArena&) = delete;
  ZoArena& operator=(const ZoArena&) = delete;
  ~ZoArena() override;

  const std::vector<ArenaWeight>& weights() const noexcept { return plan_.weights(); }
  const ArenaBase& base() const noexcept { return state_.arena; }
  // Bytes of whoever trains, as the last commit has them.
  const std::vector<std::byte>& run_state() const noexcept { return state_.run; }
  const ChunkStore& store() const noexcept { return *store_; }

  std::uint64_t read_bytes(std::size_t weight) const override { return plan_.stored_bytes(weight); }
  // Of the last generation; zeros after the weight's own bytes.
  void read(std::size_t weight, std::span<std::byte> into, Done done) override;

  // The same base with other bytes of the run.
  void commit(std::span<const std::byte> run_state);

  struct Consolidation {
    std::optional<std::uint64_t> step = {};  // Nothing: all updates.
    std::span<const std::byte> run_state{};  // That the new generation is committed with.
    Progress progress = {};
  };
  // Theta of a step becomes the base, and the log's; updates from that step on stay pending. Where
  // there are none before it, only the run state is committed.
  void consolidate(ScalarLog& log, const Consolidation& how);

  // Weights of any step from the base's on, rounded to nearest, as an evaluation sees them.
  void export_step(const ScalarLog& log, std::uint64_t step, const Take& take,
                   const Progress& progress = {});
  void verify(const Progress& progress = {});  // Corrupt: the weights do not have the base's hash.

 private:
  struct ReadRequest;
  struct Reads;
  class Quiet;
  ZoArena(Budget& budget, const ArenaOptions& options, std::vector<ArenaWeight> weights);

  bool has_base() const;
  void start(const ReadRequest& request);
  void load();
  void make(const Fill& fill, std::span<const std::byte> run_state, const Progress& progress);
  void check_is_base_of(const char* caller, const ScalarLog& log) const;
  void check_room(std::span<const std::byte> run_state) const;
  void commit_state(ArenaState state);
  void drop() noexcept;
  void to_theta(const LogTheta& theta, const ArenaPiece& piece, std::span<std::byte> blocks,
                bool new_base);

  Budget& budget_;
  ArenaPlan plan_;
  RangeTeam team_;
  StoreRoom room_;
  std::unique_ptr<Reads> reads_;
  std::unique_ptr<ChunkStore> store_;
  ArenaState state_;
};

}  // namespace sluiceway
