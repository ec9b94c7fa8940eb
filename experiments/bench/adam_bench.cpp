// adam_step() at 28 bytes an element, and the whole host sequence in one pass against separate
// passes.
#include <cmath>

#include "experiments/bench/against_roof.h"
#include "experiments/bench/separate_passes.h"
#include "experiments/bench/staggered_array.h"
#include "kernels/adam.h"
#include "kernels/overflow_scan.h"

namespace sluiceway::bench {
namespace {

constexpr std::size_t kElems = std::size_t{16} << 20;  // 64 MiB an f32 array.
constexpr double kN = static_cast<double>(kElems);

template <typename G>
struct Training {
  StaggeredArray<G> g{kElems, from_float<G>(0.01F)};
  StaggeredArray<float> m{kElems, 0.01F}, v{kElems, 1e-4F}, w{kElems, 0.02F};
  StaggeredArray<f16> copy{kElems, f16{}};
  AdamHyper hyper{.lr = 1e-4, .weight_decay = 0.01, .step = 10};

  std::span<const G> gradient() const { return g.view(); }
  AdamMoments moments() { return AdamMoments::in_place(m.span(), v.span()); }
  MasterWeight master() { return {w.span(), w.span()}; }
  MasterAndCopy<f16> master_and_copy() { return {w.span(), w.span(), copy.span()}; }
};

template <typename G>
void adam_master(benchmark::State& state) {
  Training<G> t;
  run_against_roof(state, kN * (24 + sizeof(G)), &Roof::adam_gb_per_s,
                   [&] { cpu::adam_step(t.gradient(), 1.0F, t.moments(), t.hyper, t.master()); });
}

void adam_f16_copy(benchmark::State& state) {
  Training<f16> t;
  run_against_roof(state, kN * 28, &Roof::adam_gb_per_s, [&] {
    cpu::adam_step(t.gradient(), 1.0F, t.moments(), t.hyper, t.master_and_copy());
  });
}

void adam_stochastic(benchmark::State& state) {
  Training<bf16> t;
  StaggeredArray<bf16> w(kElems, from_float<bf16>(0.02F));
  run_against_roof(state, kN * 22, &Roof::adam_gb_per_s, [&] {
    cpu::adam_step(t.gradient(), 1.0F, t.moments(), t.hyper,
                   StochasticWeight{w.span(), w.span(), {}, 0});
  });
}

void adam_hi_lo(benchmark::State& state) {
  Training<bf16> t;
  StaggeredArray<bf16> hi(kElems, from_float<bf16>(0.02F));
  StaggeredArray<std::uint16_t> low(kElems, 12345);
  run_against_roof(state, kN * 26, &Roof::adam_gb_per_s, [&] {
    cpu::adam_step(t.gradient(), 1.0F, t.moments(), t.hyper,
                   HiLoWeight{hi.span(), low.span(), hi.span(), low.span()});
  });
}

void adam_direction(benchmark::State& state) {
  Training<bf16> t;
  StaggeredArray<bf16> d(kElems, bf16{});
  run_against_roof(state, kN * 20, &Roof::adam_gb_per_s, [&] {
    cpu::adam_direction(t.gradient(), 1.0F, t.moments(), t.hyper, d.span());
  });
}

BENCHMARK(adam_master<float>)->UseManualTime();
BENCHMARK(adam_master<f16>)->UseManualTime();
BENCHMARK(adam_master<bf16>)->UseManualTime();
BENCHMARK(adam_f16_copy)->UseManualTime();
BENCHMARK(adam_stochastic)->UseManualTime();
BENCHMARK(adam_hi_lo)->UseManualTime();
BENCHMARK(adam_direction)->UseManualTime();

// ---- Scan, norm, unscale, clip, AdamW, 16-bit cast
// ------------------------------------------------

constexpr float kInverseScale = 1.0F / 1024;
constexpr double kMaxNorm = 1.0;

float clip_factor(double norm) {
  return static_cast<float>(std::min(1.0, kMaxNorm / (norm + 1e-6)));
}

// Two passes, because the norm of all gradients must be known before the first weight moves: the
// scan reads 2 bytes an element, the step moves 28.
void fused(Training<f16>& t) {
  const ScanResult scan = cpu::overflow_scan(t.gradient());
  if (!scan.finite) return;
  const float clip = clip_factor(std::sqrt(scan.sum_squares) * double{kInverseScale});
  cpu::adam_step(t.gradient(), kInverseScale * clip, t.moments(), t.hyper, t.master_and_copy());
}

// The same six operations, each a pass of its own and each as fast as memory: the scan reads 2
// bytes an element, unscaling into f32 moves 6, the norm 4, the clip 8, AdamW 28, the cast 6.
void separate(Training<f16>& t, StaggeredArray<float>& unscaled) {
  if (!cpu::overflow_scan(t.gradient()).finite) return;
  unscale_pass(t.g.data(), kInverseScale, unscaled.data(), kElems);
  const std::span<const float> g = unscaled.view();
  const float clip = clip_factor(std::sqrt(cpu::overflow_scan(g).sum_squares));
  scale_pass(unscaled.data(), clip, kElems);
  cpu::adam_step(g, 1.0F, t.moments(), t.hyper, t.master());
  cast_pass(t.w.data(), t.copy.data(), kElems);
}

void host_sequence(benchmark::State& state) {
  Training<f16> t;
  StaggeredArray<float> unscaled(kElems, 0.0F);
  separate(t, unscaled);
  std::vector<double> seconds, speedups;
  for ([[maybe_unused]] const auto _ : state) {
    const double apart = seconds_of([&] { separate(t, unscaled); });
    seconds.push_back(seconds_of([&] { fused(t); }));
    speedups.push_back(apart / seconds.back());
    state.SetIterationTime(seconds.back());
  }
  state.counters["gb_per_s"] = kN * 30 / median(seconds) * 1e-9;
  state.counters["speedup"] = median(speedups);  // One pass over separate passes.
}

BENCHMARK(host_sequence)->UseManualTime();

}  // namespace
}  // namespace sluiceway::bench
