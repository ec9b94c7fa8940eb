#include "runtime/engine/offload/core_footprint.h"

#include <algorithm>
#include <chrono>
#include <limits>
#include <vector>

#include "compress/codec_families.h"
#include "compress/host_side.h"
#include "kernels/base/check.h"
#include "runtime/device/device_memory.h"
#include "runtime/device/host_pages.h"
#include "runtime/memory/budget.h"
#include "runtime/memory/pinned_pool.h"

namespace sluiceway {
namespace {

constexpr std::uint64_t kLandings = 2;  // One core crosses while another is decompressed.

void check_options(const CoreOptions& options) {
  const CodecFamily* const family = find_codec_family(options.codec.name);
  SLUICEWAY_CHECK(family != nullptr && !family->learns, "OffloadEngine: codec ", options.codec.name,
                  " does not draw its projectors from a seed; use block_random or sparse_random");
  SLUICEWAY_CHECK(options.wire != WireFormat::kInt8,
                  "OffloadEngine: wire is int8, expected fp32 or bf16");
}

void add(CoreFootprint& sum, const TensorSpec& spec, const CoreOptions& options, DeviceId device) {
  const std::int64_t m = spec.rows(), n = spec.cols();
  const std::int64_t core = core_shape(options.codec, m, n).elems();
  const auto elems = static_cast<std::size_t>(core);
  const std::uint64_t wire = wire_bytes(options.wire, core);
  const bool packed = options.wire != WireFormat::kF32;
  ++sum.weights;
  sum.elems += spec.elems();
  sum.device_bytes += elems * sizeof(float) + (packed ? wire : 0) +
                      projector_bytes(options.codec, m, n) + ResultSlot::bytes(device);
  sum.d2h_bytes += wire;
  const std::uint64_t landing = kLandings * round_up(wire, std::uint64_t{PinnedPool::kPieceBytes});
  sum.landing_bytes =
      std::max(sum.landing_bytes, round_up(landing, std::uint64_t{page_bytes(Pages::kOrdinary)}));
  sum.core_elems = std::max(sum.core_elems, elems);
  sum.scratch_elems = std::max(sum.scratch_elems, codec_scratch_elems(options.codec, m, n));
  sum.range_elems = std::max(sum.range_elems, range_scratch_elems(options.codec, m, n));
}

}  // namespace

bool crosses_as_core(const TensorSpec& spec, int tensor, const ChunkPlan& plan) {
  const int first = plan.of_tensor(tensor).front();
  return spec.compressed && plan.chunks()[static_cast<std::size_t>(first)].pieces.size() == 1;
}

CoreFootprint core_footprint(std::span<const TensorSpec> tensors, const ChunkPlan& plan,
                             const CoreOptions& options, UpdatePolicy policy, DeviceId device) {
  CoreFootprint sum;
  for (std::size_t i = 0; i < tensors.size(); ++i) {
    const int tensor = static_cast<int>(i);
    if (!crosses_as_core(tensors[i], tensor, plan)) continue;
    if (sum.weights == 0) check_options(options);
    add(sum, tensors[i], options, device);
    if (!device.is_host()) {
      sum.host_bytes += projector_bytes(options.codec, tensors[i].rows(), tensors[i].cols());
    }
    for (const int chunk : plan.of_tensor(tensor)) {
      sum.stored_elems += plan.chunks()[static_cast<std::size_t>(chunk)].stored_elems;
    }
  }
  sum.device_bytes += sum.scratch_elems * sizeof(float);
  if (sum.weights > 0) sum.device_bytes += ResultSlot::bytes(device);  // For packing cores.
  if (policy == UpdatePolicy::kSpill && options.spill == CoreSpill::kCore) {
    sum.d2h_bytes *= 2;  // Once for the scan, once for the update.
  }
  const std::uint64_t lanes = may_feed(options, policy) ? 2 : 1;  // Lanes that decompress.
  sum.host_bytes += lanes * (sum.core_elems + sum.range_elems) * sizeof(float);
  return sum;
}

double decompress_seconds(const CodecConfig& codec, std::int64_t m, std::int64_t n,
                          DType gradient) {
  constexpr std::int64_t kMostRows = 1024, kMostCols = 4096;
  constexpr std::size_t kMostElems = std::size_t{1} << 20;  // Size of a chunk.
  constexpr int kTries = 5;
  CodecConfig config = codec;
  const std::int64_t rows = std::min(m, kMostRows), cols = std::min(n, kMostCols);
  config.d = std::min({config.d, rows, cols});
  Budget budget = Budget::unlimited();
  const auto made = make_codec(config, rows, cols, 0, DeviceId::host(), budget);
  const CoreShape shape = made->core();
  std::vector<float> core(static_cast<std::size_t>(shape.elems()), 0.5F);
  std::vector<float> scratch(made->range_scratch_elems());
  const std::size_t elems = std::min(kMostElems, static_cast<std::size_t>(rows * cols));
  std::vector<std::byte> out(elems * size_bytes(gradient));
  const AnyMatrix s{core.data(), shape.rows, shape.cols, shape.cols, DType::kF32};
  double least = std::numeric_limits<double>::infinity();
  for (int i = 0; i < kTries; ++i) {
    const auto began = std::chrono::steady_clock::now();
    made->decompress_range(s, 0, out, gradient, scratch);
    const std::chrono::duration<double> took = std::chrono::steady_clock::now() - began;
    least = std::min(least, took.count());
  }
  return least / static_cast<double>(elems);
}

}  // namespace sluiceway
