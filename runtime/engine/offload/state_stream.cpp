#include "runtime/engine/offload/state_stream.h"

#include <algorithm>
#include <array>
#include <chrono>
#include <exception>
#include <future>
#include <mutex>
#include <optional>
#include <type_traits>
#include <utility>

#include "kernels/base/check.h"

namespace sluiceway {
namespace {

// Of extents that are summed: 16 KiB of f32, which stay in the first-level cache.
constexpr std::int64_t kTileElems = 4096;
constexpr std::chrono::hours kPatience{24};  // For room in the ring; the executor has its own.

std::size_t stream_bytes(const PlannedChunk& chunk, DType dtype) {
  return static_cast<std::size_t>(chunk.stored_elems) * size_bytes(dtype);
}

std::size_t lease_bytes(const PlannedChunk& chunk, DType gradient, DType weight, int extents) {
  const std::size_t emitted = weight == DType::kF32 ? 0 : stream_bytes(chunk, weight);
  return kStateStreams * stream_bytes(chunk, DType::kF32) +
         static_cast<std::size_t>(extents) * stream_bytes(chunk, gradient) + emitted;
}

template <typename T>
std::span<const T> as(std::span<const std::byte> bytes) {
  return {reinterpret_cast<const T*>(bytes.data()), bytes.size() / sizeof(T)};
}

template <typename T>
std::span<T> as(std::span<std::byte> bytes) {
  return {reinterpret_cast<T*>(bytes.data()), bytes.size() / sizeof(T)};
}

// Ends a hop when the last of several requests has ended, with the first error of them.
class LastOf {
 public:
  LastOf(int count, HopDone done) : left_(count), done_(std::move(done)) {}

  void end(const std::exception_ptr& error) {
    std::exception_ptr first;
    {
      const std::lock_guard lock(mutex_);
      if (error && !error_) error_ = error;
      if (--left_ > 0) return;
      first = error_;
    }
    done_(first);
  }

 private:
  std::mutex mutex_;
  int left_;
  std::exception_ptr error_;
  HopDone done_;
};

}  // namespace

// The memory of one chunk on its way, cut into its streams.
struct StateStream::Job {
  Job(int number, const PlannedChunk& of, ChunkUpdate with)
      : index(number), chunk(of), update(std::move(with)) {}

  void cut(PinnedPool::Lease whole, Types types) {
    lease.emplace(std::move(whole));
    std::span<std::byte> rest = lease->bytes();
    const auto next = [&rest](std::size_t bytes) {
      const auto taken = rest.first(bytes);
      rest = rest.subspan(bytes);
      return taken;
    };
    for (auto& stream : state) stream = next(stream_bytes(chunk, DType::kF32));
    for (int i = 0; i < update.extents; ++i) {
      gradients.push_back(next(stream_bytes(chunk, types.gradient)));
    }
    copy = types.weight == DType::kF32 ? state[2] : next(stream_bytes(chunk, types.weight));
  }

  int index;
  const PlannedChunk& chunk;
  ChunkUpdate update;
  std::optional<PinnedPool::Lease> lease;
  std::array<std::span<std::byte>, kStateStreams> state;  // exp_avg, exp_avg_sq, master.
  std::vector<std::span<std::byte>> gradients;
  std::span<std::byte> copy;  // What is emitted.
};

namespace {

// Elements of a piece, in each stream of its chunk.
template <typename G, typename W>
struct PieceOf {
  std::vector<std::span<const G>> gradients;
  std::span<float> m, v, master;
  std::span<W> copy;
};

template <typename G, typename Weight>
void adam_tile(std::span<const G> g, float grad_scale, const AdamHyper& hyper, std::span<float> m,
               std::span<float> v, std::span<float> master, std::span<Weight> copy) {
  const AdamMoments moments = AdamMoments::in_place(m, v);
  if constexpr (std::is_same_v<Weight, float>) {
    cpu::adam_step(g, grad_scale, moments, hyper, MasterWeight{master, master});
  } else {
    cpu::adam_step(g, grad_scale, moments, hyper, MasterAndCopy<Weight>{master, master, copy});
  }
}

template <typename G, typename W>
void adam_piece(const PieceOf<G, W>& piece, float grad_scale, const AdamHyper& hyper) {
  if (piece.gradients.size() == 1) {
    adam_tile(piece.gradients.front(), grad_scale, hyper, piece.m, piece.v, piece.master,
              piece.copy);
    return;
  }
  std::array<float, kTileElems> sum;
  for (std::size_t at = 0; at < piece.m.size(); at += kTileElems) {
    const std::size_t count = std::min<std::size_t>(kTileElems, piece.m.size() - at);
    const auto tile = std::span(sum).first(count);
    std::ranges::transform(piece.gradients.front().subspan(at, count), tile.begin(),
                           [](G g) { return to_float(g); });
    for (std::size_t k = 1; k < piece.gradients.size(); ++k) {
      const auto extent = piece.gradients[k].subspan(at, count);
      for (std::size_t i = 0; i < count; ++i) tile[i] += to_float(extent[i]);
    }
    adam_tile(std::span<const float>(tile), grad_scale, hyper, piece.m.subspan(at, count),
              piece.v.subspan(at, count), piece.master.subspan(at, count),
              piece.copy.subspan(at, count));
  }
}

template <typename Act>
void with_type(DType dtype, const Act& act) {
  switch (dtype) {
    case DType::kF32:
      return act(float{});
    case DType::kF16:
      return act(f16{});
    case DType::kBF16:
      return act(bf16{});
  }
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
    most = std::max(most, lease_bytes(chunk, types.gradient, types.weight, extents));
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

PinnedPool::Lease StateStream::lease(const PlannedChunk& chunk, int extents) {
  return ring_.acquire(lease_bytes(chunk, types_.gradient, types_.weight, extents),
                       "chunk of state", kPatience, kBlockBytes);
}

void StateStream::write_initial(
    const std::function<void(const ChunkPiece&, std::span<float>)>& fill) {
  for (std::size_t c = 0; c < plan_.chunks().size(); ++c) {
    const auto job = std::make_shared<Job>(static_cast<int>(c), plan_.chunks()[c], ChunkUpdate());
    job->cut(lease(job->chunk, 1), types_);
    for (const auto& stream : job->state) std::ranges::fill(stream, std::byte{0});
    for (const ChunkPiece& piece : job->chunk.pieces) {
      fill(piece,
           as<float>(job->state[2])
               .subspan(static_cast<std::size_t>(piece.at), static_cast<std::size_t>(piece.elems)));
    }
    std::promise<void> stored;
    store(job, HopDone([&stored](const std::exception_ptr& error) {
            error ? stored.set_exception(error) : stored.set_value();
          }));
    stored.get_future().get();
  }
}

Payload StateStream::update(int chunk, ChunkUpdate update) {
  const PlannedChunk& planned = plan_.chunks().at(static_cast<std::size_t>(chunk));
  SLUICEWAY_CHECK(update.hypers.size() == planned.pieces.size() && update.extents > 0,
                  "StateStream: chunk ", chunk, " with ", update.hypers.size(),
                  " hyperparameters and ", update.extents, " extents, expected ",
                  planned.pieces.size(), " and 1 or more");
  const auto job = std::make_shared<Job>(chunk, planned, std::move(update));
  Payload payload;
  payload.name = concat("chunk ", chunk);
  payload.hops.resize(3);
  Hop& first = payload.hops[0];
  first.lane = lanes_.fetch;
  first.start = [this, job](StreamRef, HopDone done) { fetch(job, std::move(done)); };
  first.bytes =
      kStateStreams * stream_bytes(planned, DType::kF32) +
      static_cast<std::size_t>(job->update.extents) * stream_bytes(planned, types_.gradient);
  payload.hops[1].lane = lanes_.host;
  payload.hops[1].run = [this, job](StreamRef) { compute(*job); };
  Hop& last = payload.hops[2];
  last.lane = lanes_.store;
  last.start = [this, job](StreamRef, HopDone done) { store(job, std::move(done)); };
  last.bytes = kStateStreams * stream_bytes(planned, DType::kF32);
  return payload;
}

// Waits in its lane while the ring is full: chunks behind it would find no room either.
void StateStream::fetch(const std::shared_ptr<Job>& job, HopDone done) {
  job->cut(lease(job->chunk, job->update.extents), types_);
  const int extents = job->update.extents;
  const auto all = std::make_shared<LastOf>(kStateStreams + extents, std::move(done));
  const auto chunk = static_cast<std::uint64_t>(job->index);
  const auto read = [&](const auto& start) {
    try {
      start([job, all](const std::exception_ptr& error) { all->end(error); });
    } catch (...) {
      all->end(std::current_exception());
    }
  };
  for (std::uint64_t i = 0; i < kStateStreams; ++i) {
    read([&](ChunkStore::Done ended) {
      store_.read({kStateRegion, kStateStreams * chunk + i}, Version::kLive, job->state[i],
                  std::move(ended));
    });
  }
  for (std::size_t i = 0; i < job->gradients.size(); ++i) {
    read([&](ChunkStore::Done ended) {
      store_.read_extent({kGradientRegion, chunk}, i, job->gradients[i], std::move(ended));
    });
  }
}

void StateStream::compute(Job& job) const {
  for (std::size_t p = 0; p < job.chunk.pieces.size(); ++p) {
    const ChunkPiece& piece = job.chunk.pieces[p];
    const auto at = static_cast<std::size_t>(piece.at),
               count = static_cast<std::size_t>(piece.elems);
    with_type(types_.gradient, [&](auto g) {
      with_type(types_.weight, [&](auto w) {
        PieceOf<decltype(g), decltype(w)> of;
        for (const auto extent : job.gradients) {
          of.gradients.push_back(
              as<const decltype(g)>(std::span<const std::byte>(extent)).subspan(at, count));
        }
        of.m = as<float>(job.state[0]).subspan(at, count);
        of.v = as<float>(job.state[1]).subspan(at, count);
        of.master = as<float>(job.state[2]).subspan(at, count);
        of.copy = as<decltype(w)>(job.copy).subspan(at, count);
        adam_piece(of, job.update.grad_scale, job.update.hypers[p]);
      });
    });
    const std::size_t width = size_bytes(types_.weight);
    if (job.update.emit) job.update.emit(piece, job.copy.subspan(at * width, count * width));
  }
}

void StateStream::store(const std::shared_ptr<Job>& job, HopDone done) {
  const auto all = std::make_shared<LastOf>(kStateStreams, std::move(done));
  const auto chunk = static_cast<std::uint64_t>(job->index);
  for (std::uint64_t i = 0; i < kStateStreams; ++i) {
    try {
      store_.write({kStateRegion, kStateStreams * chunk + i}, job->state[i],
                   [job, all](const std::exception_ptr& error) { all->end(error); });
    } catch (...) {
      all->end(std::current_exception());
    }
  }
}

}  // namespace sluiceway
