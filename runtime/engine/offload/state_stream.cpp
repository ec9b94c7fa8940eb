#include "runtime/engine/offload/state_stream.h"

#include <algorithm>
#include <chrono>
#include <exception>
#include <future>
#include <iterator>
#include <optional>
#include <utility>

#include "kernels/base/check.h"
#include "runtime/engine/countdown.h"
#include "runtime/engine/offload/chunk_job.h"
#include "runtime/engine/offload/extent_sum.h"
#include "runtime/engine/offload/kept_weights.h"

namespace sluiceway {
namespace {

constexpr std::chrono::hours kWaitLimit{24};  // For room in the ring; the executor has its own.

ChunkUpdate of_extents(int count) {
  ChunkUpdate update;
  update.extents = count;
  return update;
}

// Starts one of several requests; an exception counts as its result.
template <typename Start>
void begin(const std::shared_ptr<Countdown>& all, const std::shared_ptr<void>& memory,
           const Start& start) {
  try {
    start([memory, all](const std::exception_ptr& error) { all->end(error); });
  } catch (...) {
    all->end(std::current_exception());
  }
}

// Waits in the calling thread for a request that a hop would otherwise start.
template <typename Start>
void wait_for(const Start& start) {
  std::promise<void> ended;
  start(HopDone([&ended](const std::exception_ptr& error) {
    error ? ended.set_exception(error) : ended.set_value();
  }));
  ended.get_future().get();
}

std::vector<RegionSpec> regions_in_place(const StatePlaces& places, const StateStream::Types& types,
                                         std::uint32_t micro_batches) {
  const ChunkPlaces& all = places.all_in_place();
  const auto one_chunk = [](RegionKind kind, std::uint64_t bytes, std::uint32_t slots) {
    return RegionSpec{kind, std::max(bytes, kBlockBytes), 1, slots};
  };
  std::vector<RegionSpec> regions = {
      one_chunk(RegionKind::kState, all.state_bytes, 1),
      one_chunk(RegionKind::kGradient, all.elems * size_bytes(types.gradient), micro_batches)};
  if (all.weight > 0) regions.push_back(one_chunk(RegionKind::kWeights, all.weight_bytes, 1));
  return regions;
}

std::vector<RegionSpec> regions_on_drives(const StatePlaces& places, const ChunkPlan& plan,
                                          const StateStream::Types& types, std::uint32_t slots,
                                          std::uint32_t micro_batches) {
  const ChunkPlaces& all = places.all_on_drives();
  const std::size_t width = size_bytes(types.gradient);
  const auto chunk = static_cast<std::uint64_t>(plan.chunk_elems());
  // As in stores of earlier versions: room for a full chunk, even if no chunk is full.
  const bool is_plain = types.codec == StateCodec::kFp32;
  // No region is empty, even if all trained chunks are in place.
  const std::uint64_t part =
      is_plain ? chunk * sizeof(float) : std::max(places.widest_part(), kBlockBytes);
  const std::uint64_t trained = std::max<std::uint64_t>(1, all.trained);
  std::vector<RegionSpec> regions = {
      {RegionKind::kState, part, StateForm::parts(types.codec) * trained, slots},
      {RegionKind::kGradient, chunk * width, trained, micro_batches}};
  if (all.weight > 0) {
    regions.push_back({RegionKind::kWeights, places.widest_weight(), all.weight, slots});
  }
  return regions;
}

}  // namespace

StatePlaces StateStream::places_of(const ChunkPlan& plan, const Types& types) {
  return {plan, types.codec, types.weights, types.streamed, types.gradient, types.in_place};
}

std::vector<RegionSpec> StateStream::regions(const ChunkPlan& plan, const Types& types,
                                             std::uint32_t slots, std::uint32_t micro_batches) {
  const StatePlaces places = places_of(plan, types);
  return types.in_place.any() ? regions_in_place(places, types, micro_batches)
                              : regions_on_drives(places, plan, types, slots, micro_batches);
}

std::vector<RegionSpec> StateStream::overflow_regions(const ChunkPlan& plan, const Types& types,
                                                      std::uint32_t micro_batches) {
  const StatePlaces places = places_of(plan, types);
  const ChunkPlaces& others = places.all_on_drives();
  if (!types.in_place.any() || others.trained + others.weight == 0) return {};
  return regions_on_drives(places, plan, types, 1, micro_batches);
}

std::size_t StateStream::ring_bytes(const ChunkPlan& plan, Types types, int extents) {
  const StatePlaces places = places_of(plan, types);
  std::size_t most = 0;
  for (std::size_t c = 0; c < plan.chunks().size(); ++c) {
    const int index = static_cast<int>(c);
    const ChunkJob job(index, plan.chunks()[c], of_extents(extents), StateSet::kAll, types,
                       places.in_place(index));
    const std::size_t leaving = job.extent_bytes(types);  // The gradient, on its way to an extent.
    const std::size_t filled = job.in_place && types.feeds ? leaving : 0;
    most = std::max({most, job.bytes(types) + filled, leaving});
  }
  return most;
}

StateStream::StateStream(ChunkStore& store, ChunkStore* overflow, PinnedPool& ring,
                         const ChunkPlan& plan, Lanes lanes, Types types)
    : store_(store),
      requests_(overflow != nullptr ? *overflow : store),
      ring_(ring),
      plan_(plan),
      lanes_(lanes),
      types_(types),
      places_(places_of(plan, types)) {
  SLUICEWAY_CHECK(!types.in_place.any() || !store.memory({kStateRegion, 0}, 0).empty(),
                  "StateStream: in place needs a store in host memory");
  SLUICEWAY_CHECK(types.codec == StateCodec::kFp32 || types.names.size() == types.weights.size(),
                  "StateStream: ", types.names.size(), " names, expected ", types.weights.size(),
                  ", one per tensor");
  SLUICEWAY_CHECK(ring.slab_bytes() >= ring_bytes(plan, types, 1), "StateStream: the ring has ",
                  format_bytes(ring.slab_bytes()), ", expected at least ",
                  format_bytes(ring_bytes(plan, types, 1)), " for one chunk; raise budget.pinned");
}

void StateStream::check_ring(int chunk, int extents) const {
  const PlannedChunk& planned = plan_.chunks().at(static_cast<std::size_t>(chunk));
  const std::size_t bytes =
      ChunkJob(chunk, planned, of_extents(extents), StateSet::kAll, types_, places_.in_place(chunk))
          .bytes(types_);
  if (bytes <= ring_.slab_bytes()) return;
  throw OutOfMemory(concat(
      "offload: a chunk with the gradients of ", extents, " backwards takes ", format_bytes(bytes),
      " of the ring, which has ", format_bytes(ring_.slab_bytes()),
      "; set accumulate= to the number of backwards, raise budget.pinned, or use smaller chunks"));
}

StateStream::JobPtr StateStream::make_job(int chunk, ChunkUpdate update, StateSet states) {
  const PlannedChunk& planned = plan_.chunks().at(static_cast<std::size_t>(chunk));
  auto job = std::make_shared<ChunkJob>(chunk, planned, std::move(update), states, types_,
                                        places_.in_place(chunk));
  if (!job->in_place) return job;
  for (const std::size_t part : job->travelling)
    job->parts[part] = state_memory(chunk, job->form, part);
  for (int i = 0; i < job->update.extents; ++i) job->gradients.push_back(extent_memory(chunk, i));
  return job;
}

std::span<std::byte> StateStream::state_memory(int chunk, const StateForm& form, std::size_t part) {
  const ChunkPlaces& place = places_.of(chunk);
  const std::size_t bytes = form.bytes_of(part);
  if (part == StateForm::kWeight) {
    return store_.memory({kWeightRegion, 0}, 0).subspan(place.weight_bytes, bytes);
  }
  return store_.memory({kStateRegion, 0}, 0).subspan(place.state_bytes + part * bytes, bytes);
}

std::span<std::byte> StateStream::extent_memory(int chunk, int slot) {
  const auto c = static_cast<std::size_t>(chunk);
  const std::size_t width = size_bytes(types_.gradient);
  return store_.memory({kGradientRegion, 0}, static_cast<std::uint64_t>(slot))
      .subspan(places_.of(chunk).elems * width,
               static_cast<std::size_t>(plan_.chunks()[c].stored_elems) * width);
}

void StateStream::write_extent(int chunk, int slot, std::span<const std::byte> from,
                               ChunkStore::Done done) {
  if (places_.in_place(chunk)) {
    std::ranges::copy(from, extent_memory(chunk, slot).begin());
    return done(nullptr);
  }
  requests_.write_extent(extent_chunk(chunk), static_cast<std::uint64_t>(slot), from,
                         std::move(done));
}

ChunkId StateStream::state_chunk(int chunk, std::size_t part) const {
  const ChunkPlaces& place = places_.of(chunk);
  if (part == StateForm::kWeight) return {kWeightRegion, place.weight};
  return {kStateRegion, StateForm::parts(types_.codec) * place.trained + part};
}

// ---- Streamed weights ---------------------------------------------------------------------------

void StateStream::read_weight(int tensor, Version version, std::uint64_t first,
                              std::span<std::byte> into, bool keeps, ChunkStore::Done done) {
  const auto form_of = [&](int chunk) {
    const PlannedChunk& planned = plan_.chunks()[static_cast<std::size_t>(chunk)];
    return StateForm(types_.codec, planned, types_.weights, types_.streamed);
  };
  const std::span<const int> chunks = plan_.of_tensor(tensor);
  const StateForm front = form_of(chunks.front());
  const std::size_t each = front.bytes_of(front.weight_part());  // Of all chunks but the last.
  const std::size_t count = (into.size() + each - 1) / each;
  const auto all = std::make_shared<Countdown>(static_cast<int>(count), HopDone(std::move(done)));
  for (std::size_t k = 0; k < count; ++k) {
    begin(all, nullptr, [&](ChunkStore::Done ended) {
      const int chunk = chunks[first / each + k];
      const StateForm form = form_of(chunk);
      const std::size_t part = form.weight_part();
      const auto to = into.subspan(k * each, form.bytes_of(part));
      if (places_.in_place(chunk)) {
        std::ranges::copy(state_memory(chunk, form, part), to.begin());
        return ended(nullptr);
      }
      const ChunkId id = state_chunk(chunk, part);
      if (keeps && kept_ != nullptr && form.updates_read_weight()) {
        ended = [this, chunk, to, ended = std::move(ended)](std::exception_ptr error) {
          if (!error) kept_->put(chunk, to);
          ended(std::move(error));
        };
      }
      requests_.read(id, version_of(id, version), to, std::move(ended));
    });
  }
}

// A write since the last commit, if that is what is asked for and there is one. A store beside one
// that changes in place has no commit.
Version StateStream::version_of(ChunkId id, Version version) const {
  if (types_.in_place.any()) return Version::kStaged;
  const bool staged = version == Version::kStaged && requests_.written_bytes(id, version) > 0;
  return staged ? Version::kStaged : Version::kLive;
}

void StateStream::take_room(ChunkJob& job) {
  const std::size_t bytes = job.bytes(types_);
  if (bytes == 0) return;
  job.cut(ring_.acquire(bytes, "chunk of state", kWaitLimit, kBlockBytes), types_);
}

// ---- In the calling thread ----------------------------------------------------------------------

void StateStream::store_now(const JobPtr& job) {
  if (job->in_place) return;
  wait_for([&](HopDone done) { store(job, std::move(done)); });
}

void StateStream::write_initial(
    const std::function<void(const ChunkPiece&, std::span<float>)>& fill) {
  for (std::size_t c = 0; c < plan_.chunks().size(); ++c) {
    const auto job = make_job(static_cast<int>(c), of_extents(0), StateSet::kAll);
    if (!job->in_place) take_room(*job);
    for (const auto& part : job->parts) std::ranges::fill(part, std::byte{0});
    const auto masters = [&](const ChunkPiece& piece, const PieceState& state) {
      fill(piece, state[StateForm::kMaster]);
    };
    job->visit(masters, true);
    store_now(job);
  }
}

StateStream::JobPtr StateStream::loaded(int chunk, Version version) {
  auto job = make_job(chunk, of_extents(0), StateSet::kAll);
  job->version = version;
  if (!job->in_place) wait_for([&](HopDone done) { fetch(job, std::move(done)); });
  return job;
}

void StateStream::read(int chunk, Version version, const Visit& visitor) {
  loaded(chunk, version)->visit(visitor, false);
}

void StateStream::rewrite(int chunk, const Visit& change) {
  const auto job = loaded(chunk, Version::kStaged);
  job->visit(change, true);
  store_now(job);
}

// ---- Payloads -----------------------------------------------------------------------------------

Payload StateStream::update(int chunk, ChunkUpdate update) {
  return work_on(make_job(chunk, std::move(update), StateSet::kAll));
}

Payload StateStream::stage(int chunk, Departure departure, ChunkUpdate update) {
  const JobPtr job = make_job(chunk, std::move(update), StateSet::kAll);
  if (departure.leave) job->regions = 1;
  Payload payload = work_on(job);
  payload.hops.insert(payload.hops.begin(),
                      {departure.lane,
                       [this, job, leave = std::move(departure.leave)](StreamRef) {
                         take_room(*job);
                         if (leave) leave(job->gradients.front());
                       },
                       {},
                       departure.bytes});
  return payload;
}

Payload StateStream::work_on(const JobPtr& job) {
  const std::size_t gradients = job->gradient_count();
  SLUICEWAY_CHECK(job->update.pieces.size() == job->chunk.pieces.size() && gradients > 0,
                  "StateStream: chunk ", job->index, " got ", job->update.pieces.size(),
                  " pieces and ", gradients, " gradients, expected ", job->chunk.pieces.size(),
                  " and 1 or more");
  if (kept_ != nullptr && job->form.updates_read_weight()) job->kept_pass = kept_->pass();
  const std::size_t states = job->state_bytes();
  const std::size_t extent = job->extent_bytes(types_);
  Payload payload;
  payload.name = concat("chunk ", job->index);
  const std::size_t fetched =
      job->fetched_bytes() + static_cast<std::size_t>(job->update.extents) * extent;
  if (!job->in_place) {
    payload.hops.push_back(fetch_hop(job, fetched));
  } else if (overflows()) {  // Chunks that have their room wait for the host lane.
    payload.hops.push_back(fetch_hop(job, 0));
  }
  // A drive may keep the job for a moment longer than its payload lives. `fill` holds memory of
  // others, so it is destroyed with its hop.
  payload.hops.push_back(
      {lanes_.host, [this, job, fill = std::exchange(job->update.fill, {})](StreamRef stream) {
         if (job->in_place && !job->lease) take_room(*job);
         if (fill) fill(job->gradients.front());
         job->adam(types_);
         if (job->update.keep) job->hand_on(job->update.keep, types_, stream);
       }});
  if (!job->in_place) {
    payload.hops.push_back({lanes_.store,
                            {},
                            [this, job](StreamRef, HopDone done) { store(job, std::move(done)); },
                            states + (job->update.spills ? extent : 0)});
  }
  if (job->update.emit) payload.hops.push_back(emit(job));
  return payload;
}

Payload StateStream::emit_staged(int chunk, ChunkUpdate update) {
  update.extents = 0;
  const JobPtr job = make_job(chunk, std::move(update), StateSet::kWeights);
  job->version = Version::kStaged;
  Payload payload;
  payload.name = concat("weights of chunk ", chunk);
  payload.hops = {fetch_hop(job, job->state_bytes()),
                  {lanes_.host, [this, job](StreamRef) { job->round_weights(types_); }},
                  emit(job)};
  return payload;
}

Hop StateStream::fetch_hop(const JobPtr& job, std::uint64_t bytes) {
  return {lanes_.fetch,
          {},
          [this, job](StreamRef, HopDone done) { fetch(job, std::move(done)); },
          bytes};
}

Hop StateStream::emit(const JobPtr& job) const {
  std::uint64_t bytes = 0;
  for (const ChunkPiece& piece : job->chunk.pieces) {
    bytes += static_cast<std::uint64_t>(piece.elems) *
             size_bytes(types_.weights[static_cast<std::size_t>(piece.tensor)]);
  }
  return {lanes_.h2d,
          [this, job](StreamRef stream) { job->hand_on(job->update.emit, types_, stream); },
          {},
          bytes};
}

Payload StateStream::scan_sum(int chunk, int extents, std::span<ScanResult> results) {
  const JobPtr job = make_job(chunk, of_extents(extents), StateSet::kNone);
  SLUICEWAY_CHECK(results.size() == job->chunk.pieces.size() && extents > 0, "StateStream: chunk ",
                  chunk, " got ", results.size(), " results and ", extents, " extents, expected ",
                  job->chunk.pieces.size(), " and 1 or more");
  Payload payload;
  payload.name = concat("norm of chunk ", chunk);
  if (!job->in_place) payload.hops.push_back(fetch_hop(job, job->bytes(types_)));
  payload.hops.push_back(
      {lanes_.host, [this, job, results](StreamRef) { job->scan_sums(types_, results); }});
  return payload;
}

// Waits in its lane while the ring is full: later chunks would find no room either.
void StateStream::fetch(const JobPtr& job, HopDone done) {
  if (!job->lease) take_room(*job);
  if (job->in_place) return done(nullptr);
  const auto extents = static_cast<std::size_t>(job->update.extents);
  std::vector<std::size_t> parts;
  std::ranges::copy_if(job->travelling, std::back_inserter(parts),
                       [&](std::size_t part) { return job->is_fetched(part); });
  const auto all =
      std::make_shared<Countdown>(static_cast<int>(parts.size() + extents), std::move(done));
  for (const std::size_t part : parts) {
    begin(all, job, [&](ChunkStore::Done ended) {
      if (job->kept_pass && part == job->form.weight_part() &&
          kept_->take(job->index, *job->kept_pass, job->parts[part])) {
        return ended(nullptr);
      }
      const ChunkId id = state_chunk(job->index, part);
      requests_.read(id, version_of(id, job->version), job->parts[part], std::move(ended));
    });
  }
  for (std::size_t i = 0; i < extents; ++i) {
    begin(all, job, [&](ChunkStore::Done ended) {
      requests_.read_extent(extent_chunk(job->index), i, job->gradients[i], std::move(ended));
    });
  }
}

void StateStream::store(const JobPtr& job, HopDone done) {
  const int spilled = job->update.spills ? 1 : 0;
  const auto all = std::make_shared<Countdown>(static_cast<int>(job->travelling.size()) + spilled,
                                               std::move(done));
  for (const std::size_t part : job->travelling) {
    begin(all, job, [&](ChunkStore::Done ended) {
      requests_.write(state_chunk(job->index, part), job->parts[part], std::move(ended));
    });
  }
  if (spilled == 0) return;
  begin(all, job, [&](ChunkStore::Done ended) {
    requests_.write_extent(extent_chunk(job->index), 0, job->gradients.front(), std::move(ended));
  });
}

}  // namespace sluiceway
