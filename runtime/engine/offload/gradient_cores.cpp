#include "runtime/engine/offload/gradient_cores.h"

#include <algorithm>
#include <chrono>
#include <limits>
#include <utility>

#include "kernels/base/check.h"
#include "kernels/philox.h"
#include "runtime/engine/offload/last_of.h"
#include "runtime/engine/offload/offload_lanes.h"
#include "runtime/engine/offload/state_stream.h"

namespace sluiceway {
namespace {

using offload_lanes::kD2h, offload_lanes::kDecompress;

constexpr std::chrono::hours kPatience{24};  // For room; the executor has its own.

}  // namespace

GradientCores::GradientCores(EngineLanes& lanes, ChunkStore& store, PinnedPool& ring,
                             const ChunkPlan& plan, const ChunkGroups& groups,
                             std::span<const TensorSpec> tensors, DType gradient,
                             const CoreOptions& options)
    : lanes_(lanes),
      store_(store),
      ring_(ring),
      plan_(plan),
      groups_(groups),
      gradient_(gradient),
      options_(options),
      weights_(tensors.size()),
      of_chunk_(plan.chunks().size(), -1) {
  const CoreFootprint all = core_footprint(tensors, plan, options_);
  for (std::size_t i = 0; i < tensors.size(); ++i) {
    const int tensor = static_cast<int>(i);
    const TensorSpec& spec = tensors[i];
    if (!crosses_as_core(spec, tensor, plan)) continue;
    auto weight = std::make_unique<Weight>();
    weight->spec = &spec;
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
  host_core_ = Buffer(lanes.budget(), Tier::kHost, lanes.device(), all.core_elems * sizeof(float),
                      "a core that has arrived", Fill::kNone);
  range_scratch_ = Buffer(lanes.budget(), Tier::kHost, lanes.device(),
                          all.range_elems * sizeof(float), "scratch of decompress", Fill::kNone);
}

CoreShape GradientCores::core(int tensor) const {
  return holds(tensor) ? weights_[at(tensor)]->codec->core() : CoreShape{};
}

CodecConfig GradientCores::config_of(std::int64_t draw) const {
  constexpr std::uint64_t kOdd = 0x9E3779B97F4A7C15U;  // Seeds of neighbouring draws are far apart.
  CodecConfig config = options_.codec;
  config.seed += static_cast<std::uint64_t>(draw) * kOdd;
  return config;
}

void GradientCores::draw(Weight& weight, std::int64_t step) {
  const std::int64_t draws = options_.redraw > 0 ? step / options_.redraw : 0;
  if (weight.draws == draws) return;
  weight.codec.reset();  // The budget has room for one.
  weight.codec = make_codec(config_of(draws), weight.spec->rows(), weight.spec->cols(), weight.hash,
                            lanes_.device(), lanes_.budget());
  weight.draws = draws;
}

// ---- Gradients come -----------------------------------------------------------------------------

void GradientCores::add(int tensor, const AnyMatrix& g, std::int64_t step, StreamRef compute) {
  Weight& weight = *weights_.at(at(tensor));
  // A core that is on its way is not changed.
  lanes_.wait(groups_.spill(groups_.of_tensor(tensor)));
  if (!weight.summed) draw(weight, step);
  const TraceRange range(&lanes_.trace(), lanes_.device_row(), "compress");
  const CoreShape shape = weight.codec->core();
  const AnyMatrix matrix{g.data, weight.spec->rows(), weight.spec->cols(), weight.spec->cols(),
                         g.dtype};
  weight.codec->compress(matrix, weight.summed ? 1.0F : 0.0F,
                         {weight.core.as<float>().data(), shape.rows, shape.cols},
                         scratch_.as<float>(), compute);
  weight.summed = true;
  weight.sent = false;
  weight.compute = compute;
}

void GradientCores::send(int tensor) {
  Weight& weight = *weights_.at(at(tensor));
  if (!weight.summed || weight.sent) return;
  std::span<const std::byte> outgoing = std::as_bytes(weight.core.as<float>());
  if (weight.packed.size() > 0) {
    ScanResult ignored;  // What is written is scanned.
    pack(options_.wire, weight.core.as<float>(), weight.packed.as<std::byte>(), &ignored,
         weight.compute);
    outgoing = weight.packed.as<std::byte>();
  }
  const auto lease = std::make_shared<std::optional<PinnedPool::Lease>>();
  const auto cross = [this, lease, outgoing](StreamRef stream) {
    lease->emplace(landing_->acquire(outgoing.size(), "core", kPatience));
    lanes_.d2h().copy((*lease)->bytes().data(), outgoing.data(), outgoing.size(), stream);
  };
  const auto write = [this, lease, tensor, &weight](StreamRef, const HopDone& done) {
    decompress(tensor, weight, (*lease)->bytes(), done);
    lease->reset();
  };
  const int group = groups_.of_tensor(tensor);
  Payload payload;
  payload.key = groups_.spill(group);
  payload.deadline = static_cast<std::uint64_t>(group);
  payload.name = concat("core of ", weight.spec->name);
  payload.hops = {{kD2h, cross, {}, outgoing.size()}, {kDecompress, {}, write, 0}};
  lanes_.executor().submit(std::move(payload));
  weight.sent = true;
}

// In its lane, one weight after another: each chunk is written while the next is decompressed.
void GradientCores::decompress(int tensor, Weight& weight, std::span<const std::byte> wire,
                               const HopDone& done) {
  const CoreShape shape = weight.codec->core();
  const auto elems = static_cast<std::size_t>(shape.elems());
  const std::span<float> core = host_core_.as<float>().first(elems);
  cpu::unpack(options_.wire, wire.first(wire_bytes(options_.wire, shape.elems())), core);
  const std::span<const int> chunks = plan_.of_tensor(tensor);
  const auto all = std::make_shared<LastOf>(static_cast<int>(chunks.size()), done);
  for (std::size_t c = 0; c < chunks.size(); ++c) {
    const PlannedChunk& chunk = plan_.chunks()[at(chunks[c])];
    const ChunkPiece& piece = chunk.pieces.front();
    const std::size_t width = size_bytes(gradient_);
    const auto lease = std::make_shared<PinnedPool::Lease>(ring_.acquire(
        static_cast<std::size_t>(chunk.stored_elems) * width, "gradient", kPatience, kBlockBytes));
    const auto used = static_cast<std::size_t>(piece.elems) * width;
    std::ranges::fill(lease->bytes().subspan(used), std::byte{0});
    weight.scans[c] = weight.codec->decompress_range(
        {core.data(), shape.rows, shape.cols, shape.cols, DType::kF32}, piece.first,
        lease->bytes().first(used), gradient_, range_scratch_.as<float>());
    try {
      store_.write_extent({StateStream::kGradientRegion, static_cast<std::uint64_t>(chunks[c])}, 0,
                          lease->bytes(),
                          [lease, all](const std::exception_ptr& error) { all->end(error); });
    } catch (...) {
      all->end(std::current_exception());
    }
  }
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
  return tensor >= 0 && weights_[at(tensor)]->sent ? 1 : 0;
}

void GradientCores::clear() {
  for (const auto& weight : weights_) {
    if (weight) weight->summed = weight->sent = false;
  }
}

}  // namespace sluiceway
