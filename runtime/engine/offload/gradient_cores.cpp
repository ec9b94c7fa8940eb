#include "runtime/engine/offload/gradient_cores.h"

#include <algorithm>
#include <chrono>
#include <limits>
#include <utility>

#include "kernels/base/check.h"
#include "kernels/philox.h"
#include "runtime/engine/countdown.h"
#include "runtime/engine/offload/offload_lanes.h"

namespace sluiceway {
namespace {

using offload_lanes::kAsTheyCame, offload_lanes::kD2h, offload_lanes::kDecompress;

constexpr std::chrono::hours kWaitLimit{24};  // For room; the executor has its own.

}  // namespace

GradientCores::GradientCores(EngineLanes& lanes, StateStream& stream, PinnedPool& ring,
                             const ChunkPlan& plan, const ChunkGroups& groups, GradientExit& exit,
                             std::span<const TensorSpec> tensors, DType gradient,
                             const CoreOptions& options, UpdatePolicy policy)
    : lanes_(lanes),
      stream_(stream),
      ring_(ring),
      plan_(plan),
      groups_(groups),
      exit_(exit),
      gradient_(gradient),
      options_(options),
      spill_(options.spill),
      twins_(Budget::unlimited()),
      weights_(tensors.size()),
      of_chunk_(plan.chunks().size(), -1) {
  const CoreFootprint all = core_footprint(tensors, plan, options_, policy);
  for (std::size_t i = 0; i < tensors.size(); ++i) {
    const int tensor = static_cast<int>(i);
    const TensorSpec& spec = tensors[i];
    if (!crosses_as_core(spec, tensor, plan)) continue;
    auto weight = std::make_unique<Weight>();
    weight->spec = &spec;
    weight->tensor = tensor;
    weight->hash = stable_hash(spec.name);
    weight->scans.resize(plan.of_tensor(tensor).size());
    draw(*weight, 0);
    const auto elems = static_cast<std::size_t>(weight->codec->core().elems());
    const std::string purpose = concat("core of ", spec.name);
    weight->core =
        Buffer(lanes.budget(), Tier::kDevice, lanes.device(), elems * sizeof(float), purpose);
    if (options_.wire != WireFormat::kF32) {
      weight->packed = Buffer(lanes.budget(), Tier::kDevice, lanes.device(),
                              wire_bytes(options_.wire, static_cast<std::int64_t>(elems)), purpose);
    }
    for (const int chunk : plan.of_tensor(tensor)) of_chunk_[at(chunk)] = tensor;
    weights_[i] = std::move(weight);
  }
  if (all.weights == 0) return;
  landing_.emplace(lanes.budget(), lanes.device(),
                   PinnedPool::Config{.slab_bytes = static_cast<std::size_t>(all.landing_bytes)});
  scratch_ = Buffer(lanes.budget(), Tier::kDevice, lanes.device(),
                    all.scratch_elems * sizeof(float), "scratch of compress", Fill::kNone);
  ignored_ = ResultSlot(lanes.device(), lanes.budget(), "scans of cores");
  in_decompress_ = make_expander(all.core_elems, all.range_elems);
  if (may_feed(options_, policy)) in_host_ = make_expander(all.core_elems, all.range_elems);
}

GradientCores::Expander GradientCores::make_expander(std::size_t core_elems,
                                                     std::size_t scratch_elems) {
  Expander made;
  made.core = Buffer(lanes_.budget(), Tier::kHost, lanes_.device(), core_elems * sizeof(float),
                     "an arrived core", Fill::kNone);
  made.scratch = Buffer(lanes_.budget(), Tier::kHost, lanes_.device(),
                        scratch_elems * sizeof(float), "scratch of decompress", Fill::kNone);
  return made;
}

CoreShape GradientCores::core(int tensor) const {
  if (!holds(tensor)) return {};
  const TensorSpec& spec = *weights_[at(tensor)]->spec;
  return core_shape(options_.codec, spec.rows(), spec.cols());
}

CodecConfig GradientCores::config_of(std::int64_t draw) const {
  constexpr std::uint64_t kOdd = 0x9E3779B97F4A7C15U;  // Spreads the seeds of successive draws.
  CodecConfig config = options_.codec;
  config.seed += static_cast<std::uint64_t>(draw) * kOdd;
  return config;
}

void GradientCores::draw(Weight& weight, std::int64_t step) {
  const std::int64_t draws = options_.redraw > 0 ? step / options_.redraw : 0;
  if (weight.draws == draws) return;
  wait_for(exit_.compute());  // A dropped core may still use the last projectors.
  weight.draws = kNotDrawn;   // If anything below throws, the next gradient draws again.
  // The budget has room for one set of projectors, plus the host set from which a device draws.
  weight.codec.reset();
  weight.twin.reset();
  weight.twin_bytes = {};
  const CodecConfig config = config_of(draws);
  const std::int64_t m = weight.spec->rows(), n = weight.spec->cols();
  weight.codec = make_codec(config, m, n, weight.hash, lanes_.device(), lanes_.budget());
  if (!lanes_.device().is_host()) {
    weight.twin_bytes = lanes_.budget().reserve(Tier::kHost, projector_bytes(config, m, n),
                                                concat("projectors of ", weight.spec->name));
    weight.twin = make_codec(config, m, n, weight.hash, DeviceId::host(), twins_);
  }
  weight.draws = draws;
}

// ---- Gradients come -----------------------------------------------------------------------------

void GradientCores::add(int tensor, const AnyMatrix& g, std::int64_t step) {
  Weight& weight = *weights_.at(at(tensor));
  // Waits, because a core on its way must not change.
  lanes_.wait(groups_.spill(groups_.of_tensor(tensor)));
  if (!weight.summed) draw(weight, step);
  const TraceRange range(&lanes_.trace(), lanes_.device_row(), "compress");
  const CoreShape shape = weight.codec->core();
  const AnyMatrix matrix{g.data, weight.spec->rows(), weight.spec->cols(), weight.spec->cols(),
                         g.dtype};
  weight.codec->compress(matrix, weight.summed ? 1.0F : 0.0F,
                         {weight.core.as<float>().data(), shape.rows, shape.cols},
                         scratch_.as<float>(), exit_.compute());
  weight.summed = true;
  weight.is_packed = weight.sent = false;
}

std::span<const std::byte> GradientCores::outgoing(Weight& weight) {
  if (weight.packed.size() == 0) return std::as_bytes(weight.core.as<float>());
  if (!weight.is_packed) {
    ScanResult ignored;
    pack(options_.wire, weight.core.as<float>(), weight.packed.as<std::byte>(),
         ignored_.place(ignored, exit_.compute()), exit_.compute());
    weight.is_packed = true;
  }
  return weight.packed.as<std::byte>();
}

void GradientCores::cross(Arrival& arrival, const Event& there, std::span<const std::byte> core) {
  arrival.landing.emplace(landing_->acquire(core.size(), "core", kWaitLimit));
  exit_.cross(there, core, arrival.landing->bytes());
}

void GradientCores::send(int tensor) {
  Weight& weight = *weights_.at(at(tensor));
  if (!weight.summed || weight.sent) return;
  const auto core = outgoing(weight);
  const Event there = exit_.reached();
  const auto arrival = std::make_shared<Arrival>();
  const int group = groups_.of_tensor(tensor);
  Payload payload;
  payload.key = groups_.spill(group);
  payload.deadline = kAsTheyCame;
  payload.name = concat("core of ", weight.spec->name);
  payload.hops = {{kD2h,
                   [this, arrival, there, core](StreamRef) { cross(*arrival, there, core); },
                   {},
                   core.size()},
                  {kDecompress, {}, [this, arrival, &weight](StreamRef, const HopDone& done) {
                     decompress(weight, *arrival, done);
                     arrival->landing.reset();
                   }}};
  lanes_.executor().submit(std::move(payload));
  weight.sent = true;
}

void GradientCores::expand(Expander& with, Weight& weight, const Arrival& arrival, std::size_t c,
                           std::span<std::byte> into) const {
  const GradientCodec& codec = weight.on_host();
  const CoreShape shape = codec.core();
  const std::span<float> core =
      with.core.as<float>().first(static_cast<std::size_t>(shape.elems()));
  if (with.holds != arrival.landing->generation()) {
    const std::uint64_t bytes = wire_bytes(options_.wire, shape.elems());
    cpu::unpack(options_.wire, arrival.landing->bytes().first(bytes), core);
    with.holds = arrival.landing->generation();
  }
  const int chunk = plan_.of_tensor(weight.tensor)[c];
  const ChunkPiece& piece = plan_.chunks()[at(chunk)].pieces.front();
  const auto used = static_cast<std::size_t>(piece.elems) * size_bytes(gradient_);
  std::ranges::fill(into.subspan(used), std::byte{0});
  weight.scans[c] =
      codec.decompress_range({core.data(), shape.rows, shape.cols, shape.cols, DType::kF32},
                             piece.first, into.first(used), gradient_, with.scratch.as<float>());
}

// Handles one weight after another; each chunk is written while the next is decompressed.
void GradientCores::decompress(Weight& weight, const Arrival& arrival, const HopDone& done) {
  const std::span<const int> chunks = plan_.of_tensor(weight.tensor);
  const auto all = std::make_shared<Countdown>(static_cast<int>(chunks.size()), done);
  for (std::size_t c = 0; c < chunks.size(); ++c) {
    const auto stored = static_cast<std::size_t>(plan_.chunks()[at(chunks[c])].stored_elems);
    const auto lease = std::make_shared<PinnedPool::Lease>(
        ring_.acquire(stored * size_bytes(gradient_), "gradient", kWaitLimit, kBlockBytes));
    expand(in_decompress_, weight, arrival, c, lease->bytes());
    if (spill_ == CoreSpill::kCore) {
      all->end(nullptr);
      continue;
    }
    try {
      stream_.write_extent(chunks[c], 0, lease->bytes(),
                           [lease, all](const std::exception_ptr& error) { all->end(error); });
    } catch (...) {
      all->end(std::current_exception());
    }
  }
}

// ---- Into updates -------------------------------------------------------------------------------

bool GradientCores::feeds(int chunk) const {
  const int tensor = of_chunk_.at(at(chunk));
  return tensor >= 0 && weights_[at(tensor)]->summed && spill_ == CoreSpill::kCore;
}

GradientCores::Feed GradientCores::feed(int chunk) {
  const int tensor = of_chunk_.at(at(chunk));
  Weight& weight = *weights_.at(at(tensor));
  const std::span<const int> chunks = plan_.of_tensor(tensor);
  const auto c = static_cast<std::size_t>(std::ranges::find(chunks, chunk) - chunks.begin());
  const bool is_first = c == 0;
  if (is_first) weight.arrival = std::make_shared<Arrival>();
  const std::shared_ptr<Arrival> arrival = weight.arrival;
  if (c + 1 == chunks.size()) weight.arrival.reset();
  const auto core = outgoing(weight);
  weight.sent = true;
  // For later chunks nothing crosses: their hop only waits behind that of the first.
  const auto come = [this, arrival, core, is_first, there = is_first ? exit_.reached() : Event()] {
    if (is_first) cross(*arrival, there, core);
  };
  const auto fill = [this, arrival, &weight, c](std::span<std::byte> gradient) {
    const std::lock_guard lock(in_host_mutex_);
    expand(in_host_, weight, *arrival, c, gradient);
  };
  return {come, is_first ? core.size() : 0, fill};
}

// ---- A backward has ended -----------------------------------------------------------------------

void GradientCores::send_all() {
  for (std::size_t t = 0; t < weights_.size(); ++t) {
    if (weights_[t]) send(static_cast<int>(t));
  }
}

ScanResult GradientCores::scan(int tensor) const {
  const Weight& weight = *weights_.at(at(tensor));
  ScanResult result;
  for (const ScanResult& scan : weight.scans) result = merge(result, scan);
  return weight.sent ? result : ScanResult{true, std::numeric_limits<double>::quiet_NaN(), 0};
}

int GradientCores::extents(int chunk) const {
  const int tensor = of_chunk_.at(at(chunk));
  return tensor >= 0 && weights_[at(tensor)]->sent && !feeds(chunk) ? 1 : 0;
}

void GradientCores::clear() {
  for (const auto& weight : weights_) {
    if (!weight) continue;
    weight->summed = weight->is_packed = weight->sent = false;
    weight->arrival.reset();  // An exception may have interrupted the feeding.
  }
}

}  // namespace sluiceway
