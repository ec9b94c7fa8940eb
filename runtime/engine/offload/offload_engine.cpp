#include "runtime/engine/offload/offload_engine.h"

#include <algorithm>
#include <exception>
#include <future>
#include <utility>

#include "kernels/base/check.h"
#include "runtime/device/device_memory.h"
#include "runtime/engine/offload/extent_sum.h"
#include "runtime/engine/offload/offload_footprint.h"
#include "runtime/engine/offload/offload_lanes.h"

namespace sluiceway {
namespace {

using offload_lanes::kDecompress, offload_lanes::kFetch, offload_lanes::kH2d, offload_lanes::kHost,
    offload_lanes::kSpill, offload_lanes::kStore;

constexpr StateStream::Lanes kStateLanes{kFetch, kHost, kStore, kH2d};

std::uint64_t limit_of(const OffloadOptions& options, Tier tier) {
  return options.lanes.limits[static_cast<std::size_t>(tier)];
}

bool is_speculative(const OffloadOptions& options) {
  return options.policy == UpdatePolicy::kSpeculative;
}

std::uint32_t slots_of(const OffloadOptions& options) {
  return state_slots(options.policy, is_in_memory(options.store));
}

InPlace in_place_of(const OffloadOptions& options, std::span<const TensorSpec> tensors,
                    const ChunkPlan& plan, const StateStream::Types& types) {
  if (slots_of(options) != 1) return {};
  const auto extents = static_cast<std::uint32_t>(std::max(1, options.gate.promised_backwards));
  if (options.overflow.drives.empty()) return {InPlace::kAll, static_cast<int>(extents)};
  const CoreFootprint cores =
      core_footprint(tensors, plan, options.cores, options.policy, options.lanes.device);
  return in_place_within(limit_of(options, Tier::kHost), tensors, plan, types, extents,
                         cores.host_bytes);
}

std::vector<std::int64_t> elems_of(const std::vector<TensorSpec>& tensors) {
  SLUICEWAY_CHECK(!tensors.empty(), "OffloadEngine: 0 tensors, expected at least one");
  std::vector<std::int64_t> elems;
  elems.reserve(tensors.size());
  for (const TensorSpec& tensor : tensors) elems.push_back(tensor.elems());
  return elems;
}

std::vector<DType> dtypes_of(const std::vector<TensorSpec>& tensors, DType gradient) {
  std::vector<DType> dtypes;
  dtypes.reserve(tensors.size());
  for (const TensorSpec& tensor : tensors) {
    SLUICEWAY_CHECK(tensor.dtype == DType::kF32 || tensor.dtype == gradient || tensor.frozen,
                    "OffloadEngine: ", tensor.name, " is ", to_string(tensor.dtype),
                    ", but gradients are stored as ", to_string(gradient), ", expected ",
                    to_string(tensor.dtype), "; set gradients=", to_string(tensor.dtype));
    dtypes.push_back(tensor.dtype);
  }
  return dtypes;
}

std::vector<Streamed> streamed_of(const std::vector<TensorSpec>& tensors) {
  std::vector<Streamed> streamed;
  streamed.reserve(tensors.size());
  for (const TensorSpec& tensor : tensors) streamed.push_back(tensor.how_streamed());
  return streamed;
}

std::vector<std::uint8_t> away_of(const std::vector<TensorSpec>& tensors) {
  std::vector<std::uint8_t> away;
  away.reserve(tensors.size());
  for (const TensorSpec& tensor : tensors) away.push_back(tensor.is_away() ? 1 : 0);
  return away;
}

std::vector<std::uint64_t> names_of(const std::vector<TensorSpec>& tensors) {
  std::vector<std::uint64_t> names;
  names.reserve(tensors.size());
  for (const TensorSpec& tensor : tensors) names.push_back(stable_hash(tensor.name));
  return names;
}

}  // namespace

OffloadEngine::OffloadEngine(OffloadOptions options, std::vector<TensorSpec> tensors)
    : GatedEngine(lanes_, gate_),
      options_(std::move(options)),
      tensors_(std::move(tensors)),
      weight_dtypes_(dtypes_of(tensors_, options_.gradient)),
      streamed_(streamed_of(tensors_)),
      away_(away_of(tensors_)),
      names_(names_of(tensors_)),
      plan_(elems_of(tensors_), options_.chunk_elems),
      in_place_(in_place_of(options_, tensors_, plan_, types({}))),
      groups_(plan_, static_cast<int>(tensors_.size())),
      lanes_(options_.lanes,
             offload_lanes::specs(options_.device_cpu, options_.lane_cpu, options_.host_threads),
             offload_lanes::kPlan, groups_.key_count()),
      ring_(
          lanes_.budget(), lanes_.device(),
          {.slab_bytes = offload_ring_bytes(
               plan_, types(), options_.gate.promised_backwards, limit_of(options_, Tier::kPinned),
               core_footprint(tensors_, plan_, options_.cores, options_.policy).landing_bytes +
                   GradientExit::pinned_bytes(lanes_.device())),
           .pages = Pages::kHuge}),
      room_(lanes_.budget(), !options_.store.drives.empty()),
      overflow_room_(lanes_.budget(), true),
      store_(open_store()),
      overflow_(open_overflow()),
      stream_(*store_, overflow_.get(), ring_, plan_, kStateLanes, types()),
      compute_(lanes_),
      exit_(lanes_, compute_, plan_, options_.gradient),
      cores_(lanes_, stream_, ring_, plan_, groups_, exit_, tensors_, options_.gradient,
             options_.cores, options_.policy),
      park_(lanes_.budget(), plan_, weight_dtypes_, away_,
            is_speculative(options_) ? options_.park_bytes : 0),
      speculation_(lanes_, stream_, cores_, plan_, groups_, park_,
                   {is_speculative(options_), options_.gate.promised_backwards,
                    options_.redo || options_.gate.max_norm > 0}),
      spill_(lanes_, extent_stores(), ring_, plan_, groups_, stream_, speculation_, exit_,
             options_.gradient),
      gate_(options_.gate, options_.lanes.order, lanes_.executor(),
            static_cast<int>(tensors_.size())),
      steps_(tensors_.size()) {}

OffloadEngine::~OffloadEngine() {
  fetch_.reset();
  lanes_.stop();
  try {
    wait_for(compute_.ref());  // It may still use our memory.
  } catch (...) {              // A failed device runs nothing any more.
  }
}

StateStream::Types OffloadEngine::types(const InPlace& in_place) const noexcept {
  return {options_.gradient,
          weight_dtypes_,
          in_place,
          may_feed(options_.cores, options_.policy),
          !options_.lanes.device.is_host(),
          options_.state_codec,
          options_.seed,
          names_,
          streamed_};
}

std::unique_ptr<ChunkStore> OffloadEngine::open_store() {
  const int promised = std::max(1, options_.gate.promised_backwards);
  const auto extents = static_cast<std::uint32_t>(promised);
  // An existing store may be larger; a new one is rejected before it is made.
  const Contents contents = state_contents(plan_, types(), slots_of(options_), extents);
  room_.hold(new_layout(contents, {1}));
  OpenedStore opened = open_state_store(lanes_.budget(), options_.store, tensors_, plan_, types(),
                                        contents, ring_.slab());
  room_.hold(opened.store->layout());
  is_new_ = opened.is_new;
  return std::move(opened.store);
}

std::unique_ptr<ChunkStore> OffloadEngine::open_overflow() {
  const auto extents = static_cast<std::uint32_t>(in_place_.extents);
  const Contents contents = overflow_contents(plan_, types(), extents);
  if (contents.regions.empty()) return nullptr;
  overflow_room_.hold(new_layout(contents, {1}));
  auto store = open_or_create(lanes_.budget(), options_.overflow, contents, ring_.slab());
  overflow_room_.hold(store->layout());
  return store;
}

std::vector<GradientSpill::Extents> OffloadEngine::extent_stores() {
  std::vector<GradientSpill::Extents> stores = {{*store_, room_}};
  if (overflow_ != nullptr) stores.push_back({*overflow_, overflow_room_});
  return stores;
}

void OffloadEngine::check_tensor(int index, const AnyMatrix& matrix, const char* what,
                                 DType dtype) const {
  const TensorSpec& tensor = tensors_.at(at(index));
  const bool whole = matrix.stride == matrix.cols || matrix.rows <= 1;
  SLUICEWAY_CHECK(matrix.rows * matrix.cols == tensor.elems() && whole, "OffloadEngine: ", what,
                  " of ", tensor.name, " has ", matrix.rows * matrix.cols,
                  whole ? "" : " scattered", " elements, expected ", tensor.elems(),
                  " in one piece; make a new optimizer after you change a parameter");
  SLUICEWAY_CHECK(matrix.dtype == dtype, "OffloadEngine: ", what, " of ", tensor.name, " is ",
                  to_string(matrix.dtype), ", expected ", to_string(dtype),
                  "; make a new optimizer after you change a parameter");
}

void OffloadEngine::check_weights(const char* caller, std::span<const AnyMatrix> weights,
                                  bool away) const {
  SLUICEWAY_CHECK(weights.size() == tensors_.size(), "OffloadEngine: ", caller, " got ",
                  weights.size(), " tensors, expected the ", tensors_.size(),
                  " tensors that the engine trains");
  for (std::size_t i = 0; i < weights.size(); ++i) {
    if (!away && away_[i] != 0) continue;
    check_tensor(static_cast<int>(i), weights[i], "weight", tensors_[i].dtype);
  }
}

void OffloadEngine::check_stream(const char* what, StreamRef compute) const {
  SLUICEWAY_CHECK(compute.device() == lanes_.device(), "OffloadEngine: ", what, " on ",
                  to_string(compute.device()), ", expected ", to_string(lanes_.device()),
                  ", the device of the engine");
}

void OffloadEngine::check_begun(const char* caller) const {
  SLUICEWAY_CHECK(
      begun_, "OffloadEngine: ", caller, " needs the states of a run, but the store ",
      is_new_ ? "is empty; call begin() first" : "has not been read; call resume() first");
}

void OffloadEngine::check_trained(const char* caller, int index) const {
  SLUICEWAY_CHECK(!tensor(index).frozen, "OffloadEngine: ", caller, " of ", tensor(index).name,
                  ", which is frozen and has no states, expected one that is trained");
}

// ---- Before the first step ----------------------------------------------------------------------

void OffloadEngine::begin(std::span<const AnyMatrix> tensors, StreamRef compute,
                          const HostWeight& away) {
  check_weights("begin", tensors, !away);
  check_stream("weights are", compute);
  const auto step = std::max<std::int64_t>(gate_.committed_steps(),
                                           static_cast<std::int64_t>(store_->live().step));
  SLUICEWAY_CHECK(is_new_ || step == 0,
                  "OffloadEngine: begin() would overwrite the run in the store, which is at step ",
                  step, "; call resume() to go on with it");
  end_pass();
  if (begun_) synchronize();
  wait_for(compute);
  int asked = -1;
  AnyMatrix given;  // The tensor `asked`.
  stream_.write_initial([&](const ChunkPiece& piece, std::span<float> master) {
    const bool is_given = away && is_away(piece.tensor);
    if (is_given && asked != piece.tensor) {
      given = away(piece.tensor);
      asked = piece.tensor;
      check_tensor(asked, given, "weight", tensor(asked).dtype);
    }
    const AnyMatrix& from = is_given ? given : tensors[at(piece.tensor)];
    with_type(from.dtype, [&](auto type) {
      using T = decltype(type);
      std::span<const T> values(static_cast<const T*>(from.data) + piece.first, master.size());
      std::vector<T> copy;
      if (!lanes_.device().is_host() && !is_given) {
        copy.resize(values.size());
        copy_device_bytes(lanes_.device(), copy.data(), values.data(), values.size_bytes());
        values = copy;
      }
      std::ranges::transform(values, master.begin(), [](T value) { return to_float(value); });
    });
  });
  std::ranges::fill(steps_, 0);
  gate_.set_committed_steps(0);
  begun_ = true;
  note_uncommitted(true);
  commit();
  is_new_ = false;
  for (std::size_t c = 0; c < plan_.chunks().size(); ++c) {
    const int chunk = static_cast<int>(c);
    const bool is_fp8 = tensor(plan_.chunks()[c].pieces.front().tensor).fp8;
    if (is_fp8 && !is_chunk_away(chunk)) bring(chunk, tensors);
  }
}

void OffloadEngine::bring(int chunk, std::span<const AnyMatrix> tensors) {
  stream_.read(
      chunk, written_version(), [&](const ChunkPiece& piece, const StateStream::PieceState& state) {
        const AnyMatrix& into = tensors[at(piece.tensor)];
        with_type(into.dtype, [&](auto type) {
          using T = decltype(type);
          T* const there = static_cast<T*>(into.data) + piece.first;
          const auto rounded = [](float value) { return from_float<T>(value); };
          if (lanes_.device().is_host()) {
            std::ranges::transform(state[2], there, rounded);
            return;
          }
          std::vector<T> values(state[2].size());
          std::ranges::transform(state[2], values.begin(), rounded);
          copy_device_bytes(lanes_.device(), there, values.data(), values.size() * sizeof(T));
        });
      });
}

void OffloadEngine::resume(std::span<const AnyMatrix> tensors, StreamRef compute) {
  SLUICEWAY_CHECK(!is_new_, "OffloadEngine: resume() found no run in the store; call begin()");
  check_weights("resume", tensors, false);
  check_stream("weights are", compute);
  end_pass();
  if (begun_) synchronize();
  wait_for(compute);
  for (std::size_t c = 0; c < plan_.chunks().size(); ++c) {
    if (!is_chunk_away(static_cast<int>(c))) bring(static_cast<int>(c), tensors);
  }
  take_over();
  begun_ = true;
}

// ---- A step -------------------------------------------------------------------------------------

void OffloadEngine::expect(std::span<const TensorHyper> hyper, float factor) {
  SLUICEWAY_CHECK(!has_gradient(),
                  "OffloadEngine: expect() was called after a gradient of this step; call it "
                  "before the backward, or call step() or drop() first");
  speculation_.expect(hyper, factor);
}

void OffloadEngine::add_gradient(int index, const AnyMatrix& g,
                                 const std::shared_ptr<const void>& keep, StreamRef compute) {
  check_stream("a gradient is", compute);
  check_begun("add_gradient");
  check_trained("add_gradient", index);
  const bool half = g.dtype != DType::kF32;
  check_tensor(index, g, "gradient", half ? options_.gradient : DType::kF32);
  if (uncommitted_ && !in_place()) commit();  // Before an extent that it read is written again.
  compute_.move_to(compute);
  if (!has_gradient()) {
    speculation_.begin_step(steps_);
    cores_.begin_step(speculation_.active() ? CoreSpill::kCore : options_.cores.spill);
  }
  wait(groups_.of_tensor(index));
  speculation_.outdate(index, tensor(index).name);
  if (!cores_.holds(index)) {
    spill_.add(index, g, exit_.reached(), keep, options_.gradient_room);
    gate_.note_gradient(index);
    return;
  }
  cores_.add(index, g, committed_steps());
  gate_.note_gradient(index);
  if (!gate_.is_complete(index)) return;
  speculation_.takes_core(index) ? speculation_.stage_core(index) : cores_.send(index);
}

GradientNorm OffloadEngine::end_backward(bool norm) {
  if (norm) cores_.send_all();
  spill_.end_backward();
  if (norm || spill_.must_sum()) spill_.scan_sums();
  for (std::size_t i = 0; i < tensors_.size(); ++i) {
    const int index = static_cast<int>(i);
    if (gate_.backwards(index) == 0) continue;
    gate_.note_scan(index, cores_.holds(index) ? cores_.scan(index) : spill_.scan(index));
  }
  return gate_.norm();
}

void OffloadEngine::drop() {
  spill_.wait_written();  // Nothing may still write an extent that the next step begins.
  if (speculation_.has_staged()) {
    const auto changing = room_.changing();
    store_->drop();
  }
  gate_.drop();
  clear_gradients();
}

void OffloadEngine::clear_gradients() {
  spill_.clear();
  cores_.clear();
  speculation_.clear();
}

void OffloadEngine::acquire(int index, StreamRef compute) {
  compute_.acquire(groups_.update(groups_.of_tensor(index)), compute);
}

void OffloadEngine::synchronize() {
  for (int group = 0; group < groups_.count(); ++group) wait(group);
}

// ---- Streamed weights ---------------------------------------------------------------------------

// While a step's gradients are gathered, everything is committed, and only updates that this step
// may still take back are staged.
void OffloadEngine::start_read(int index, std::uint64_t first, std::span<std::byte> into,
                               bool keeps, ChunkStore::Done done) {
  lanes_.executor().wait(groups_.update(groups_.of_tensor(index)));
  const auto changing = room_.changing();
  stream_.read_weight(index, uncommitted_ ? Version::kStaged : Version::kLive, first, into, keeps,
                      std::move(done));
}

void OffloadEngine::read_weight(int index, std::span<std::byte> into) {
  check_begun("read_weight");
  const std::uint64_t bytes = stored_weight(index).bytes();
  SLUICEWAY_CHECK(is_streamed(index) && into.size() == bytes, "OffloadEngine: read_weight() of ",
                  tensor(index).name, " into ", into.size(),
                  " bytes, expected a streamed tensor and ", bytes, " bytes");
  std::promise<void> ended;
  // Nothing is kept of it: another thread may call, and the next pass may begin meanwhile.
  start_read(index, 0, into, false, [&ended](const std::exception_ptr& error) {
    error ? ended.set_exception(error) : ended.set_value();
  });
  ended.get_future().get();
}

void OffloadEngine::stream(const std::vector<std::vector<int>>& blocks, int ahead) {
  check_begun("stream");
  WeightFetch::Reader reader;
  reader.read = [this](int index, std::uint64_t first, std::span<std::byte> into,
                       ChunkStore::Done done) {
    start_read(index, first, into, true, std::move(done));
  };
  reader.is_disk = overflow_ != nullptr || !is_in_memory(options_.store);
  reader.chunk_elems = options_.chunk_elems;
  bool in_backward = options_.gate.promised_backwards == 1;  // Other gradients are summed first.
  for (int i = 0; i < std::ssize(tensors_); ++i) in_backward = in_backward || cores_.holds(i);
  if (is_speculative(options_) && in_backward && !is_in_memory(options_.store)) {
    const auto room = KeptWeights::room_for(plan_, types(), blocks, KeptWeights::blocks(ahead));
    const Budget& budget = lanes_.budget();
    if (room.chunks > 0 && room.bytes() <= budget.limit(Tier::kHost) - budget.used(Tier::kHost)) {
      kept_ = std::make_unique<KeptWeights>(lanes_.budget(), room);
      stream_.keep_weights(kept_.get());
    }
  }
  fetch_ =
      std::make_unique<WeightFetch>(lanes_.beside(), std::move(reader), tensors_, blocks, ahead);
}

WeightFetch& OffloadEngine::fetch() {
  SLUICEWAY_CHECK(fetch_ != nullptr, "OffloadEngine: no blocks are streamed; call stream() first");
  return *fetch_;
}

void OffloadEngine::end_pass() {
  if (fetch_ != nullptr) fetch_->finish();
  if (kept_ != nullptr) kept_->begin_pass();
}

bool OffloadEngine::is_chunk_away(int chunk) const {
  return is_away(plan_.chunks()[at(chunk)].pieces.front().tensor);
}

void OffloadEngine::note_uncommitted(bool uncommitted) {
  const auto changing = room_.changing();
  uncommitted_ = uncommitted;
}

// ---- The end -----------------------------------------------------------------------------------

void OffloadEngine::end_work() {
  if (begun_ && !leaves_uncommitted_) commit();
}

// ---- Numbers -----------------------------------------------------------------------------------

OffloadStats OffloadEngine::take_stats() {
  OffloadStats stats;
  stats.use = lanes_.take_use();
  if (fetch_ != nullptr) stats.use.stall_seconds += fetch_->take_stall_seconds();
  const std::vector<double>& seconds = stats.use.lane_seconds;
  stats.host_seconds = seconds[kHost];
  stats.fetch_seconds = seconds[kFetch];
  stats.store_seconds = seconds[kStore];
  stats.spill_seconds = seconds[kSpill];
  stats.decompress_seconds = seconds[kDecompress];
  std::uint64_t read = 0, written = 0;
  const ChunkStore* const moved = in_place() ? overflow_.get() : store_.get();
  for (std::size_t d = 0; moved != nullptr && d < moved->drives().size(); ++d) {
    const Drive::Counters counters = moved->drives()[d]->counters();
    read += counters.bytes_read;
    written += counters.bytes_written;
  }
  stats.disk_read = read - std::exchange(counted_read_, read);
  stats.disk_written = written - std::exchange(counted_written_, written);
  const Speculation::Counts counted = std::exchange(counted_, speculation_.counts());
  stats.speculative_steps = counted_.speculative - counted.speculative;
  stats.redone_steps = counted_.redone - counted.redone;
  stats.fallen_back_steps = counted_.fallen_back - counted.fallen_back;
  stats.commits = std::exchange(commits_, 0);
  stats.commit_seconds = std::exchange(commit_seconds_, 0);
  return stats;
}

}  // namespace sluiceway
