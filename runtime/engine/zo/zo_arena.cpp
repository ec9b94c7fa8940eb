#include "runtime/engine/zo/zo_arena.h"

#include <algorithm>
#include <condition_variable>
#include <cstddef>
#include <mutex>
#include <string_view>
#include <utility>

#include "kernels/base/check.h"
#include "kernels/base/checksum.h"
#include "runtime/engine/countdown.h"
#include "runtime/engine/zo/arena_pass.h"
#include "runtime/engine/zo/log_theta.h"
#include "runtime/store/byte_stream.h"
#include "runtime/store/chunk_store.h"
#include "runtime/store/new_layout.h"

namespace sluiceway {
namespace {

constexpr std::string_view kMagic = "SLUICEZA";
constexpr std::size_t kSumBytes = sizeof(std::uint64_t);

// Of a base, as its bytes go by in their order.
class BaseSum {
 public:
  explicit BaseSum(const std::vector<ArenaWeight>& weights) : weights_(weights) {}

  void add(const ArenaPiece& piece, std::span<const std::byte> blocks) {
    if (piece.first == 0) sum_.update(hashed_header(weights_[piece.weight]));
    sum_.update(blocks.first(piece.bytes));
  }
  BaseHash hash() const { return sum_.digest(); }

 private:
  const std::vector<ArenaWeight>& weights_;
  Checksum sum_;
};

}  // namespace

std::vector<std::byte> encode(const ArenaState& state) {
  const Base& base = state.arena.base;
  ByteWriter out;
  out.put(std::as_bytes(std::span(kMagic)));
  out.put(kArenaStateVersion);
  out.put(std::uint32_t{0});
  out.put(std::span<const std::byte>(base.hash));
  out.put(base.generation);
  out.put(base.step);
  out.put(std::span<const std::byte>(state.arena.made_with));
  out.put(static_cast<std::uint64_t>(state.run.size()));
  out.put(std::span<const std::byte>(state.run));
  out.put(checksum64(out.bytes()));
  return out.take();
}

ArenaState decode_arena_state(std::span<const std::byte> bytes) {
  ByteReader fields(bytes, "the arena's state");
  if (!std::ranges::equal(fields.take(kMagic.size()), std::as_bytes(std::span(kMagic)))) {
    throw Corrupt(concat("the arena's state: does not begin with ", kMagic));
  }
  if (const auto version = fields.take<std::uint32_t>(); version != kArenaStateVersion) {
    throw Unavailable(concat("the arena's state: version is ", version, ", expected ",
                             kArenaStateVersion, "; this build does not read it"));
  }
  if (bytes.size() < kArenaStateBytes) {
    throw Corrupt(concat("the arena's state: is ", bytes.size(), " bytes, expected at least ",
                         kArenaStateBytes));
  }
  const auto summed = bytes.first(bytes.size() - kSumBytes);
  ByteReader sum(bytes.last(kSumBytes), "the arena's state");
  if (const auto said = sum.take<std::uint64_t>(), found = checksum64(summed); found != said) {
    throw Corrupt(
        concat("the arena's state: has checksum ", to_hex(found), ", expected ", to_hex(said)));
  }
  ArenaState state;
  (void)fields.take<std::uint32_t>();
  std::ranges::copy(fields.take(state.arena.base.hash.size()), state.arena.base.hash.begin());
  state.arena.base.generation = fields.take<std::uint64_t>();
  state.arena.base.step = fields.take<std::uint64_t>();
  std::ranges::copy(fields.take(state.arena.made_with.size()), state.arena.made_with.begin());
  const auto count = fields.take<std::uint64_t>();
  if (count != fields.left() - kSumBytes) {
    throw Corrupt(concat("the arena's state: has ", fields.left() - kSumBytes,
                         " bytes of the run, expected ", count));
  }
  const auto run = fields.take(count);
  state.run.assign(run.begin(), run.end());
  return state;
}

std::vector<std::byte> hashed_header(const ArenaWeight& weight) {
  ByteWriter out;
  out.put(static_cast<std::uint64_t>(weight.name.size()));
  out.put(std::as_bytes(std::span(weight.name)));
  out.put(static_cast<std::uint32_t>(weight.dtype));
  out.put(static_cast<std::uint64_t>(weight.elements));
  return out.take();
}

ArenaFootprint arena_footprint(std::vector<ArenaWeight> weights, std::uint64_t chunk_bytes) {
  const ArenaPlan plan(std::move(weights), chunk_bytes);
  const Layout layout = new_layout(plan.contents(), {1});
  ArenaFootprint found{.store_bytes = layout.drives.front().bytes,
                       .table_bytes = ChunkStore::table_bytes(layout),
                       .pass_bytes = pass_bytes(plan)};
  for (std::size_t w = 0; w < plan.weights().size(); ++w) {
    found.base_bytes += plan.stored_bytes(w);
    found.largest_bytes = std::max(found.largest_bytes, plan.stored_bytes(w));
  }
  return found;
}

// The store takes no request while it commits or drops. Reads that come meanwhile start
// afterwards: nobody waits for a commit, since it waits for those in flight, whose handlers may
// well ask for the next read.
struct ZoArena::ReadRequest {
  std::span<const ArenaPiece> pieces;
  std::span<std::byte> into;
  std::shared_ptr<Countdown> all;
};

struct ZoArena::Reads {
  std::mutex mutex;
  std::condition_variable started;
  int starting = 0;  // Calls that are handing requests to the store.
  bool waits = false;
  std::vector<ReadRequest> later;
};

class ZoArena::Quiet {
 public:
  explicit Quiet(ZoArena& arena) : arena_(arena) {
    std::unique_lock lock(arena_.reads_->mutex);
    arena_.reads_->waits = true;
    arena_.reads_->started.wait(lock, [this] { return arena_.reads_->starting == 0; });
  }
  Quiet(const Quiet&) = delete;
  Quiet& operator=(const Quiet&) = delete;
  ~Quiet() {
    std::vector<ReadRequest> later;
    {
      const std::lock_guard lock(arena_.reads_->mutex);
      later = std::move(arena_.reads_->later);
      arena_.reads_->later.clear();
      arena_.reads_->waits = false;
    }
    for (const ReadRequest& request : later) arena_.start(request);
  }

 private:
  ZoArena& arena_;
};

ZoArena::~ZoArena() = default;

ZoArena::ZoArena(Budget& budget, const ArenaOptions& options, std::vector<ArenaWeight> weights)
    : budget_(budget),
      plan_(std::move(weights), options.chunk_bytes),
      team_(options.threads),
      room_(budget, !options.store.drives.empty()),
      reads_(std::make_unique<Reads>()) {
  const Contents contents = plan_.contents();
  if (!is_there(options.store)) {  // What is there may be larger.
    std::vector<std::uint32_t> shares = options.store.weights;
    shares.resize(std::max<std::size_t>(1, options.store.drives.size()), 1);
    room_.hold(new_layout(contents, shares));
  }
  store_ = open_or_create(budget, options.store, contents, options.memory);
  room_.hold(store_->layout());
  plan_.check(*store_);
}

// ---- Made and opened ----------------------------------------------------------------------------

bool ZoArena::has_base() const { return store_->live().run_state.bytes > 0; }

void ZoArena::load() { state_ = decode_arena_state(store_->run_state(store_->live())); }

std::unique_ptr<ZoArena> ZoArena::create(Budget& budget, const ArenaOptions& options,
                                         std::vector<ArenaWeight> weights, const Fill& fill,
                                         std::span<const std::byte> run_state,
                                         const Progress& progress) {
  std::unique_ptr<ZoArena> arena(new ZoArena(budget, options, std::move(weights)));
  if (arena->has_base()) {
    arena->load();
    throw InvalidArgument(concat("arena: one already exists at ",
                                 arena->store_->drives().front()->properties().path, ", base ",
                                 to_text(arena->base().base), "; open it, or choose another path"));
  }
  arena->make(fill, run_state, progress);
  return arena;
}

std::unique_ptr<ZoArena> ZoArena::open(Budget& budget, const ArenaOptions& options,
                                       std::vector<ArenaWeight> weights) {
  if (!options.store.opener && !is_there(options.store)) return nullptr;
  std::unique_ptr<ZoArena> arena(new ZoArena(budget, options, std::move(weights)));
  if (!arena->has_base()) return nullptr;
  arena->load();
  return arena;
}

void ZoArena::make(const Fill& fill, std::span<const std::byte> run_state,
                   const Progress& progress) {
  check_room(run_state);
  BaseSum sum(plan_.weights());
  ArenaPass pass;
  pass.reads = false;
  pass.writes = true;
  pass.act = [&](const ArenaPiece& piece, std::span<std::byte> blocks) {
    fill(piece.weight, piece.first, blocks.first(piece.bytes));
    sum.add(piece, blocks);
    return true;
  };
  pass.progress = progress;
  run_pass(*store_, plan_, budget_, pass);
  commit_state({{{sum.hash(), 1, 0}, {}}, {run_state.begin(), run_state.end()}});
}

// ---- Read ---------------------------------------------------------------------------------------

void ZoArena::read(std::size_t weight, std::span<std::byte> into, Done done) {
  const std::span<const ArenaPiece> pieces = plan_.pieces_of(weight);
  const ArenaWeight& what = plan_.weights()[weight];
  SLUICEWAY_CHECK(into.size() == plan_.stored_bytes(weight), "arena: ", what.name,
                  " is read into a buffer of ", into.size(), " bytes, expected ",
                  plan_.stored_bytes(weight), ", whole blocks of ", kBlockBytes);
  const auto all = std::make_shared<Countdown>(
      static_cast<int>(pieces.size()),
      HopDone([done = std::move(done), &what](const std::exception_ptr& error) {
        done(error ? of_weight(error, what) : nullptr);
      }));
  ReadRequest request{pieces, into, all};
  {
    const std::lock_guard lock(reads_->mutex);
    if (reads_->waits) return reads_->later.push_back(std::move(request));
    ++reads_->starting;
  }
  start(request);
  const std::lock_guard lock(reads_->mutex);
  if (--reads_->starting == 0) reads_->started.notify_all();
}

void ZoArena::start(const ReadRequest& request) {
  std::size_t begun = 0;
  std::exception_ptr error;
  try {
    for (const ArenaPiece& piece : request.pieces) {
      store_->read(piece.chunk, Version::kLive,
                   request.into.subspan(piece.first, piece.stored_bytes),
                   [all = request.all](const std::exception_ptr& said) { all->end(said); });
      ++begun;
    }
  } catch (...) {
    error = std::current_exception();
  }
  for (; begun < request.pieces.size(); ++begun) request.all->end(error);
}

// ---- Committed ----------------------------------------------------------------------------------

void ZoArena::check_room(std::span<const std::byte> run_state) const {
  const std::uint64_t room = store_->layout().run_states.bytes - kArenaStateBytes;
  SLUICEWAY_CHECK(run_state.size() <= room, "arena: the run state has ", run_state.size(),
                  " bytes, expected at most ", room);
}

void ZoArena::commit_state(ArenaState state) {
  const Quiet quiet(*this);
  store_->commit(state.arena.base.step, encode(state));
  state_ = std::move(state);
}

void ZoArena::commit(std::span<const std::byte> run_state) {
  check_room(run_state);
  commit_state({state_.arena, {run_state.begin(), run_state.end()}});
}

// Of what a pass has staged. A store that has to be opened again forgets it by that.
void ZoArena::drop() noexcept {
  const Quiet quiet(*this);
  try {
    store_->drop();
  } catch (const Error&) {
  }
}

// ---- Theta --------------------------------------------------------------------------------------

void ZoArena::to_theta(const LogTheta& theta, const ArenaPiece& piece,
                       std::span<std::byte> blocks) {
  const ArenaWeight& weight = plan_.weights()[piece.weight];
  if (theta.is_base(weight)) return;
  const std::uint64_t width = size_bytes(weight.dtype);
  team_.run(piece.bytes / width, noise_unit(NoiseFamily::kRademacher),
            [&](std::uint64_t begin, std::uint64_t end) {
              theta.apply(weight, piece.first / width + begin,
                          blocks.subspan(begin * width, (end - begin) * width));
            });
}

void ZoArena::consolidate(ScalarLog& log, const Consolidation& how) {
  SLUICEWAY_CHECK(log.base() == state_.arena.base, "arena: consolidate: the log is of base ",
                  to_text(log.base()), ", expected ", to_text(state_.arena.base),
                  "; open the log with the arena's base()");
  check_room(how.run_state);
  const std::uint64_t step = how.step.value_or(log.next_step());
  const LogTheta theta(log, step, plan_.weights());
  if (step == state_.arena.base.step) return commit(how.run_state);

  // An announcement that came to nothing may have had the next generation.
  const std::uint64_t known =
      std::max(state_.arena.base.generation, log.history().greatest_generation());
  Base next{{}, known + 1, step};
  try {
    BaseSum sum(plan_.weights());
    ArenaPass pass;
    pass.writes = true;
    pass.act = [&](const ArenaPiece& piece, std::span<std::byte> blocks) {
      to_theta(theta, piece, blocks);
      sum.add(piece, blocks);
      return !theta.is_base(plan_.weights()[piece.weight]);  // Else its chunk stays the live one.
    };
    pass.progress = how.progress;
    run_pass(*store_, plan_, budget_, pass);
    next.hash = sum.hash();
    log.announce(next);
    commit_state({{next, log.id()}, {how.run_state.begin(), how.run_state.end()}});
  } catch (...) {
    drop();
    throw;
  }
  log.adopt(next);
}

}  // namespace sluiceway
