#include "runtime/engine/offload/state_stream.h"

#include <algorithm>
#include <chrono>
#include <exception>
#include <future>
#include <optional>
#include <type_traits>
#include <utility>

#include "kernels/base/check.h"
#include "runtime/engine/offload/extent_sum.h"
#include "runtime/engine/offload/last_of.h"

namespace sluiceway {
namespace {

constexpr std::chrono::hours kPatience{24};  // For room in the ring; the executor has its own.
constexpr std::size_t kMaster = 2;

std::size_t stream_bytes(const PlannedChunk& chunk, DType dtype) {
  return static_cast<std::size_t>(chunk.stored_elems) * size_bytes(dtype);
}

bool has_copy(const PlannedChunk& chunk, std::span<const DType> weights) {
  return std::ranges::any_of(chunk.pieces, [&](const ChunkPiece& piece) {
    return weights[static_cast<std::size_t>(piece.tensor)] != DType::kF32;
  });
}

std::size_t lease_bytes(const PlannedChunk& chunk, const StateStream::Types& types, int extents,
                        bool with_state) {
  const std::size_t gradients =
      static_cast<std::size_t>(extents) * stream_bytes(chunk, types.gradient);
  if (!with_state) return gradients;
  const std::size_t copy = has_copy(chunk, types.weights) ? stream_bytes(chunk, DType::kBF16) : 0;
  return kStateStreams * stream_bytes(chunk, DType::kF32) + gradients + copy;
}

ChunkUpdate of_extents(int count) {
  ChunkUpdate update;
  update.extents = count;
  return update;
}

// Starts each of some requests; what one throws is how it ended.
template <typename Start>
void begin(const std::shared_ptr<LastOf>& all, const std::shared_ptr<void>& memory,
           const Start& start) {
  try {
    start([memory, all](const std::exception_ptr& error) { all->end(error); });
  } catch (...) {
    all->end(std::current_exception());
  }
}

// For the calling thread: what a hop would have started.
template <typename Start>
void wait_for(const Start& start) {
  std::promise<void> ended;
  start(HopDone([&ended](const std::exception_ptr& error) {
    error ? ended.set_exception(error) : ended.set_value();
  }));
  ended.get_future().get();
}

}  // namespace

// The memory of one chunk on its way, cut into its streams.
struct StateStream::Job {
  Job(int number, const PlannedChunk& of, ChunkUpdate with, bool states)
      : index(number), chunk(of), update(std::move(with)), with_state(states) {}

  void cut(PinnedPool::Lease whole, const Types& types) {
    lease.emplace(std::move(whole));
    std::span<std::byte> rest = lease->bytes();
    const auto next = [&rest](std::size_t bytes) {
      const auto taken = rest.first(bytes);
      rest = rest.subspan(bytes);
      return taken;
    };
    if (with_state) {
      for (auto& stream : state) stream = next(stream_bytes(chunk, DType::kF32));
    }
    for (int i = 0; i < update.extents; ++i) {
      gradients.push_back(next(stream_bytes(chunk, types.gradient)));
    }
    copy = rest;
  }

  PieceState state_of(const ChunkPiece& piece) const {
    const auto part = [&](std::size_t stream) {
      return elements<float>(state[stream])
          .subspan(static_cast<std::size_t>(piece.at), static_cast<std::size_t>(piece.elems));
    };
    return {part(0), part(1), part(kMaster)};
  }

  template <typename G>
  std::vector<std::span<const G>> gradients_of(const ChunkPiece& piece) const {
    std::vector<std::span<const G>> parts;
    for (const std::span<std::byte> extent : gradients) {
      parts.push_back(
          elements<G>(std::span<const std::byte>(extent))
              .subspan(static_cast<std::size_t>(piece.at), static_cast<std::size_t>(piece.elems)));
    }
    return parts;
  }

  // Where the weight of a piece is, as the model computes with it.
  std::span<std::byte> weight_of(const ChunkPiece& piece, DType dtype) const {
    const std::size_t width = size_bytes(dtype);
    const auto whole = dtype == DType::kF32 ? state[kMaster] : copy;
    return whole.subspan(static_cast<std::size_t>(piece.at) * width,
                         static_cast<std::size_t>(piece.elems) * width);
  }

  int index;
  const PlannedChunk& chunk;
  ChunkUpdate update;
  bool with_state;
  std::optional<PinnedPool::Lease> lease;
  std::array<std::span<std::byte>, kStateStreams> state;  // exp_avg, exp_avg_sq, master.
  std::vector<std::span<std::byte>> gradients;
  std::span<std::byte> copy;  // Weights that are no f32.
};

namespace {

template <typename G, typename Weight>
void adam_tile(std::span<const G> g, const PieceUpdate& with, const StateStream::PieceState& state,
               std::span<Weight> copy) {
  const AdamMoments moments = AdamMoments::in_place(state[0], state[1]);
  const std::span<float> master = state[kMaster];
  if constexpr (std::is_same_v<Weight, float>) {
    cpu::adam_step(g, with.grad_scale, moments, with.hyper, MasterWeight{master, master});
  } else {
    cpu::adam_step(g, with.grad_scale, moments, with.hyper,
                   MasterAndCopy<Weight>{master, master, copy});
  }
}

template <typename G, typename Weight>
void adam_piece(const std::vector<std::span<const G>>& extents, const PieceUpdate& with,
                const StateStream::PieceState& state, std::span<Weight> copy) {
  if (extents.size() == 1) return adam_tile(extents.front(), with, state, copy);
  for_each_sum_tile(extents, [&](std::size_t at, std::span<const float> sum) {
    const auto part = [&](auto whole) { return whole.subspan(at, sum.size()); };
    adam_tile(sum, with, {part(state[0]), part(state[1]), part(state[2])}, part(copy));
  });
}

}  // namespace

std::vector<RegionSpec> StateStream::regions(const ChunkPlan& plan, DType gradient,
                                             std::uint32_t slots, std::uint32_t micro_batches) {
  const std::uint64_t chunks = plan.chunks().size();
  const auto elems = static_cast<std::uint64_t>(plan.chunk_elems());
  return {{RegionKind::kState, elems * sizeof(float), kStateStreams * chunks, slots},
          {RegionKind::kGradient, elems * size_bytes(gradient), chunks, micro_batches}};
}

std::size_t StateStream::ring_bytes(const ChunkPlan& plan, Types types, int extents) {
  std::size_t most = 0;
  for (const PlannedChunk& chunk : plan.chunks()) {
    most = std::max(most, lease_bytes(chunk, types, extents, true));
  }
  return most;
}

StateStream::StateStream(ChunkStore& store, PinnedPool& ring, const ChunkPlan& plan, Lanes lanes,
                         Types types)
    : store_(store), ring_(ring), plan_(plan), lanes_(lanes), types_(types) {
  SLUICEWAY_CHECK(ring.slab_bytes() >= ring_bytes(plan, types, 1), "StateStream: a ring of ",
                  format_bytes(ring.slab_bytes()), ", expected at least ",
                  format_bytes(ring_bytes(plan, types, 1)), " for one chunk; raise budget.pinned");
}

void StateStream::check_ring(int chunk, int extents) const {
  const PlannedChunk& planned = plan_.chunks().at(static_cast<std::size_t>(chunk));
  const std::size_t bytes = lease_bytes(planned, types_, extents, true);
  if (bytes <= ring_.slab_bytes()) return;
  throw OutOfMemory(concat("offload: a chunk with the gradients of ", extents, " backwards takes ",
                           format_bytes(bytes), " of the ring, which has ",
                           format_bytes(ring_.slab_bytes()),
                           ", expected room for it; promise them by accumulate=, raise "
                           "budget.pinned, or take smaller chunks"));
}

std::shared_ptr<StateStream::Job> StateStream::make_job(int chunk, ChunkUpdate update,
                                                        bool with_state) const {
  const PlannedChunk& planned = plan_.chunks().at(static_cast<std::size_t>(chunk));
  return std::make_shared<Job>(chunk, planned, std::move(update), with_state);
}

// ---- In the calling thread ----------------------------------------------------------------------

void StateStream::visit(Job& job, const Visit& act) {
  for (const ChunkPiece& piece : job.chunk.pieces) act(piece, job.state_of(piece));
}

void StateStream::store_now(const std::shared_ptr<Job>& job) {
  wait_for([&](HopDone done) { store(job, std::move(done)); });
}

void StateStream::write_initial(
    const std::function<void(const ChunkPiece&, std::span<float>)>& fill) {
  for (std::size_t c = 0; c < plan_.chunks().size(); ++c) {
    const auto job = make_job(static_cast<int>(c), of_extents(0), true);
    job->cut(ring_.acquire(lease_bytes(job->chunk, types_, 0, true), "chunk of state", kPatience,
                           kBlockBytes),
             types_);
    for (const auto& stream : job->state) std::ranges::fill(stream, std::byte{0});
    visit(*job,
          [&](const ChunkPiece& piece, const PieceState& state) { fill(piece, state[kMaster]); });
    store_now(job);
  }
}

std::shared_ptr<StateStream::Job> StateStream::loaded(int chunk) {
  auto job = make_job(chunk, of_extents(0), true);
  wait_for([&](HopDone done) { fetch(job, std::move(done)); });
  return job;
}

void StateStream::read(int chunk, const Visit& visitor) { visit(*loaded(chunk), visitor); }

void StateStream::rewrite(int chunk, const Visit& change) {
  const auto job = loaded(chunk);
  visit(*job, change);
  store_now(job);
}

// ---- Payloads -----------------------------------------------------------------------------------

Payload StateStream::update(int chunk, ChunkUpdate update) {
  const auto job = make_job(chunk, std::move(update), true);
  SLUICEWAY_CHECK(job->update.pieces.size() == job->chunk.pieces.size() && job->update.extents > 0,
                  "StateStream: chunk ", chunk, " with ", job->update.pieces.size(), " pieces and ",
                  job->update.extents, " extents, expected ", job->chunk.pieces.size(),
                  " and 1 or more");
  const std::size_t states = kStateStreams * stream_bytes(job->chunk, DType::kF32);
  const std::size_t extents = lease_bytes(job->chunk, types_, job->update.extents, false);
  Payload payload;
  payload.name = concat("chunk ", chunk);
  payload.hops = {{lanes_.fetch,
                   {},
                   [this, job](StreamRef, HopDone done) { fetch(job, std::move(done)); },
                   states + extents},
                  {lanes_.host, [this, job](StreamRef) { compute(*job); }},
                  {lanes_.store,
                   {},
                   [this, job](StreamRef, HopDone done) { store(job, std::move(done)); },
                   states}};
  if (job->update.emit) {
    std::uint64_t bytes = 0;
    for (const ChunkPiece& piece : job->chunk.pieces) {
      bytes += static_cast<std::uint64_t>(piece.elems) *
               size_bytes(types_.weights[static_cast<std::size_t>(piece.tensor)]);
    }
    payload.hops.push_back(
        {lanes_.h2d, [this, job](StreamRef stream) { emit(*job, stream); }, {}, bytes});
  }
  return payload;
}

Payload StateStream::scan_sum(int chunk, int extents, std::span<ScanResult> results) {
  const auto job = make_job(chunk, of_extents(extents), false);
  SLUICEWAY_CHECK(results.size() == job->chunk.pieces.size() && extents > 0, "StateStream: chunk ",
                  chunk, " is scanned with ", results.size(), " results and ", extents,
                  " extents, expected ", job->chunk.pieces.size(), " and 1 or more");
  Payload payload;
  payload.name = concat("norm of chunk ", chunk);
  payload.hops = {{lanes_.fetch,
                   {},
                   [this, job](StreamRef, HopDone done) { fetch(job, std::move(done)); },
                   lease_bytes(job->chunk, types_, extents, false)},
                  {lanes_.host, [this, job, results](StreamRef) {
                     for (std::size_t p = 0; p < results.size(); ++p) {
                       results[p] = {};
                       with_type(types_.gradient, [&](auto g) {
                         const auto parts = job->gradients_of<decltype(g)>(job->chunk.pieces[p]);
                         for_each_sum_tile(parts, [&](std::size_t, std::span<const float> sum) {
                           results[p] = merge(results[p], cpu::overflow_scan(sum));
                         });
                       });
                     }
                   }}};
  return payload;
}

// Waits in its lane while the ring is full: chunks behind it would find no room either.
void StateStream::fetch(const std::shared_ptr<Job>& job, HopDone done) {
  const int extents = job->update.extents;
  job->cut(ring_.acquire(lease_bytes(job->chunk, types_, extents, job->with_state),
                         "chunk of state", kPatience, kBlockBytes),
           types_);
  const int states = job->with_state ? kStateStreams : 0;
  const auto all = std::make_shared<LastOf>(states + extents, std::move(done));
  const auto chunk = static_cast<std::uint64_t>(job->index);
  for (std::uint64_t i = 0; i < static_cast<std::uint64_t>(states); ++i) {
    begin(all, job, [&](ChunkStore::Done ended) {
      const ChunkId id{kStateRegion, kStateStreams * chunk + i};
      const bool staged = store_.written_bytes(id, Version::kStaged) > 0;
      store_.read(id, staged ? Version::kStaged : Version::kLive, job->state[i], std::move(ended));
    });
  }
  for (std::size_t i = 0; i < job->gradients.size(); ++i) {
    begin(all, job, [&](ChunkStore::Done ended) {
      store_.read_extent({kGradientRegion, chunk}, i, job->gradients[i], std::move(ended));
    });
  }
}

void StateStream::compute(Job& job) const {
  for (std::size_t p = 0; p < job.chunk.pieces.size(); ++p) {
    const ChunkPiece& piece = job.chunk.pieces[p];
    const PieceUpdate& with = job.update.pieces[p];
    if (!with.has_gradient) continue;
    const DType weight = types_.weights[static_cast<std::size_t>(piece.tensor)];
    with_type(types_.gradient, [&](auto g) {
      with_type(weight, [&](auto w) {
        adam_piece(job.gradients_of<decltype(g)>(piece), with, job.state_of(piece),
                   elements<decltype(w)>(job.weight_of(piece, weight)));
      });
    });
  }
}

void StateStream::emit(Job& job, StreamRef stream) const {
  for (std::size_t p = 0; p < job.chunk.pieces.size(); ++p) {
    const ChunkPiece& piece = job.chunk.pieces[p];
    if (!job.update.pieces[p].has_gradient) continue;
    const DType weight = types_.weights[static_cast<std::size_t>(piece.tensor)];
    job.update.emit(piece, job.weight_of(piece, weight), stream);
  }
}

void StateStream::store(const std::shared_ptr<Job>& job, HopDone done) {
  const auto all = std::make_shared<LastOf>(kStateStreams, std::move(done));
  const auto chunk = static_cast<std::uint64_t>(job->index);
  for (std::uint64_t i = 0; i < kStateStreams; ++i) {
    begin(all, job, [&](ChunkStore::Done ended) {
      store_.write({kStateRegion, kStateStreams * chunk + i}, job->state[i], std::move(ended));
    });
  }
}

}  // namespace sluiceway
