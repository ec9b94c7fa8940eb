// AdamW on a chunk as the engine runs it, for each codec of states: bf16 gradients and weights, one
// thread. Bytes are those of the states, read and written, and of the gradient; ns is per element.
#include "experiments/bench/against_roof.h"
#include "experiments/bench/staggered_array.h"
#include "kernels/base/elements.h"
#include "runtime/engine/offload/chunk_job.h"

namespace sluiceway::bench {
namespace {

constexpr std::int64_t kElems = std::int64_t{16} << 20;
constexpr auto kCount = static_cast<std::size_t>(kElems);

void adam_chunk(benchmark::State& state, StateCodec codec) {
  const DType weights[] = {DType::kBF16};
  const std::uint64_t names[] = {7};
  const StateStream::Types types{
      .gradient = DType::kBF16, .weights = weights, .codec = codec, .seed = 1, .names = names};
  const PlannedChunk chunk{{{0, 0, kElems, 0}}, kElems, kElems};
  ChunkUpdate update;
  update.pieces = {{{.lr = 1e-4, .weight_decay = 0.01, .step = 10}}};
  ChunkJob job(0, chunk, update, StateSet::kAll, types, false);
  StaggeredArray<std::byte> states(job.form.bytes(), std::byte{0});
  StaggeredArray<bf16> gradient(kCount, from_float<bf16>(0.01F)), copy(kCount, bf16{});
  std::size_t first = 0;
  for (const std::size_t part : job.travelling) {
    job.parts[part] = states.span().subspan(first, job.form.part_bytes());
    first += job.form.part_bytes();
  }
  for (std::size_t i = 0; i < kCount; ++i) {
    gradient[i] = from_float<bf16>(static_cast<float>(i * 2654435761U % 1024) * 1e-5F - 0.005F);
  }
  job.gradients = {std::as_writable_bytes(gradient.span())};
  if (!job.form.holds(DType::kBF16)) {
    job.copy = std::as_writable_bytes(copy.span());
    job.copy_width = sizeof(bf16);
  }
  const double moved = 2.0 * static_cast<double>(job.form.bytes()) + 2.0 * kElems +
                       (job.copy.empty() ? 0 : 2.0 * kElems);
  run_against_roof(state, moved, &Roof::adam_gb_per_s, [&] { job.adam(types); });
  state.counters["ns"] = moved / kElems / state.counters["gb_per_s"];
}

BENCHMARK_CAPTURE(adam_chunk, fp32, StateCodec::kFp32)->UseManualTime();
BENCHMARK_CAPTURE(adam_chunk, bf16, StateCodec::kBf16)->UseManualTime();
BENCHMARK_CAPTURE(adam_chunk, 8bit, StateCodec::k8Bit)->UseManualTime();

// ---- The codecs alone, over a chunk that stays in the cache -------------------------------------

constexpr std::size_t kCached = 4096;

struct Cached {
  StaggeredArray<float> x{kCached, 0};
  StaggeredArray<std::uint8_t> codes{kCached, 0};
  StaggeredArray<bf16> hi{kCached, bf16{}};
  StaggeredArray<float> scales{kCached / kStateBlock, 0};
  StaggeredArray<std::uint16_t> bits{kCached, 0};

  Cached() {
    for (std::size_t i = 0; i < kCached; ++i) {
      x[i] = static_cast<float>(i * 2654435761U % 1024) * 1e-5F;
    }
    cpu::fill_bits({1, 2, 3, 4}, 0, bits.span());
  }
  RoundingNoise noise() { return {bits.view(), kNoiseMultipliers[0]}; }
  Blocks8 blocks() { return {codes.span(), scales.span()}; }
  Split24 split() { return {hi.span(), codes.span()}; }
};

template <typename Pass>
void in_cache(benchmark::State& state, const Pass& pass) {
  Cached arrays;
  std::vector<double> ns;
  for ([[maybe_unused]] const auto _ : state) {
    constexpr int kPasses = 256;
    const double seconds = seconds_of([&] {
      for (int i = 0; i < kPasses; ++i) pass(arrays);
    });
    ns.push_back(seconds * 1e9 / kPasses / kCached);
    state.SetIterationTime(seconds);
  }
  state.counters["ns"] = median(ns);
}

void store_bf16(benchmark::State& state) {
  in_cache(state, [](Cached& c) { cpu::store_state(c.x.view(), c.noise(), c.hi.span()); });
}
void store_24(benchmark::State& state) {
  in_cache(state, [](Cached& c) { cpu::store_state(c.x.view(), c.noise(), c.split()); });
}
void store_m8(benchmark::State& state) {
  in_cache(state, [](Cached& c) {
    cpu::store_state(c.x.view(), Companding::kSigned, c.noise(), c.blocks());
  });
}
void store_v8(benchmark::State& state) {
  in_cache(state, [](Cached& c) {
    cpu::store_state(c.x.view(), Companding::kPositive, c.noise(), c.blocks());
  });
}
void load_24(benchmark::State& state) {
  in_cache(state, [](Cached& c) { cpu::load_state(c.split(), c.x.span()); });
}
void load_v8(benchmark::State& state) {
  in_cache(state,
           [](Cached& c) { cpu::load_state(c.blocks(), Companding::kPositive, c.x.span()); });
}

BENCHMARK(store_bf16)->UseManualTime();
BENCHMARK(store_24)->UseManualTime();
BENCHMARK(store_m8)->UseManualTime();
BENCHMARK(store_v8)->UseManualTime();
BENCHMARK(load_24)->UseManualTime();
BENCHMARK(load_v8)->UseManualTime();

}  // namespace
}  // namespace sluiceway::bench
