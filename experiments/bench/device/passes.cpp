// Kernels that go over arrays once, on CUDA device 0, each against the roof of its traffic.
#include "experiments/bench/device/device_bench.h"
#include "kernels/adam.h"
#include "kernels/factored_adam.h"
#include "kernels/factored_moment.h"
#include "kernels/gradient_copy.h"
#include "kernels/low_rank.h"
#include "kernels/overflow_scan.h"
#include "kernels/perturb.h"
#include "kernels/philox.h"
#include "kernels/residual.h"
#include "kernels/wire.h"

namespace sluiceway::bench {
namespace {

double bytes_of(std::int64_t elems, double each) { return static_cast<double>(elems) * each; }

template <typename T>
void scan(benchmark::State& state) {
  const std::int64_t n = device_sizes().elems;
  const auto x = random_there<T>(n, 1);
  const DeviceArray<ScanResult> result(1);
  run_on_device(state, bytes_of(n, sizeof(T)), 0, &Roof::read_gb_per_s, [&](StreamRef stream) {
    overflow_scan<T>(std::span<const T>(span_of(x)), result.data(), stream);
  });
}

void scan_copy(benchmark::State& state) {
  const std::int64_t n = device_sizes().elems;
  const auto x = random_there<float>(n, 1);
  const DeviceArray<bf16> y(count(n));
  const DeviceArray<ScanResult> result(1);
  run_on_device(state, bytes_of(n, 6), 0, &Roof::copy_gb_per_s, [&](StreamRef stream) {
    overflow_scan_copy<bf16>(span_of(x), span_of(y), result.data(), stream);
  });
}

void copy(benchmark::State& state) {
  const std::int64_t n = device_sizes().elems;
  const auto x = random_there<bf16>(n, 1);
  const DeviceArray<bf16> y(count(n));
  const DeviceArray<ScanResult> result(1);
  run_on_device(state, bytes_of(n, 4), 0, &Roof::copy_gb_per_s, [&](StreamRef stream) {
    gradient_copy<bf16, bf16>(std::span<const bf16>(span_of(x)), span_of(y), result.data(), stream);
  });
}

void perturbed(benchmark::State& state, NoiseFamily family) {
  const std::int64_t n = device_sizes().elems;
  const auto w = random_there<bf16>(n, 1);
  const DeviceArray<bf16> plus(count(n)), minus(count(n));
  run_on_device(state, bytes_of(n, 6), 0, &Roof::copy_gb_per_s, [&](StreamRef stream) {
    perturb(std::as_bytes(span_of(w)), DType::kBF16, std::as_writable_bytes(span_of(plus)),
            std::as_writable_bytes(span_of(minus)), DType::kBF16, {.family = family}, {1, 2, 3, 4},
            1e-3F, stream);
  });
}

// Rank 4, with rows of pending factors before it.
void perturbed_low_rank(benchmark::State& state, std::int64_t pending) {
  const std::int64_t n = device_sizes().side;
  const auto w = random_there<bf16>(n * n, 1);
  const DeviceArray<bf16> plus(count(n * n)), minus(count(n * n));
  const auto left = random_there<float>((pending + 4) * n, 2);
  const auto right = random_there<float>((pending + 4) * n, 3);
  const MatrixView<const float> l = matrix_of(left, pending + 4, n);
  const MatrixView<const float> r = matrix_of(right, pending + 4, n);
  const LowRank added{l.row_range(4, pending + 4), r.row_range(4, pending + 4)};
  const LowRank drawn{l.row_range(0, 4), r.row_range(0, 4)};
  const auto flop = static_cast<double>(2 * (pending + 4) + 5);
  run_on_device(state, bytes_of(n * n, 6), bytes_of(n * n, flop), &Roof::copy_gb_per_s,
                [&](StreamRef stream) {
                  perturb_low_rank(any_of(w, n, n), any_of(plus, n, n), any_of(minus, n, n), added,
                                   1.0F, drawn, 1e-3F, stream);
                });
}

void wire(benchmark::State& state, WireFormat format, bool packs) {
  const std::int64_t n = device_sizes().elems;
  const auto x = random_there<float>(n, 1);
  const auto wire_size = wire_bytes(format, n);
  const DeviceArray<std::byte> bytes(wire_size);
  const DeviceArray<ScanResult> result(1);
  const auto pack_it = [&](StreamRef stream) {
    pack(format, span_of(x), span_of(bytes), result.data(), stream);
  };
  run_on_device_0(pack_it);
  run_on_device(state, bytes_of(n, 4) + static_cast<double>(wire_size), 0, &Roof::copy_gb_per_s,
                [&](StreamRef stream) {
                  if (packs) return pack_it(stream);
                  unpack(format, span_of(bytes), span_of(x), stream);
                });
}

void noise(benchmark::State& state) {
  const std::int64_t n = device_sizes().elems;
  const DeviceArray<std::uint16_t> bits(count(n));
  // Ten rounds of Philox for eight elements; no roof here counts this integer work.
  run_on_device(state, bytes_of(n, 2), 0, &Roof::read_gb_per_s,
                [&](StreamRef stream) { fill_bits(NoiseKey{}, 0, span_of(bits), stream); });
}

void direction(benchmark::State& state) {
  const std::int64_t n = device_sizes().elems;
  const auto g = random_there<bf16>(n, 1);
  const DeviceArray<float> m(std::vector<float>(count(n))), v(std::vector<float>(count(n)));
  const DeviceArray<bf16> d(count(n));
  const AdamMoments moments = AdamMoments::in_place(span_of(m), span_of(v));
  run_on_device(state, bytes_of(n, 20), 0, &Roof::triad_gb_per_s, [&](StreamRef stream) {
    adam_direction<bf16, bf16>(std::span<const bf16>(span_of(g)), 1.0F, moments, AdamHyper{},
                               span_of(d), stream);
  });
}

// For a matrix of the weight's side.
struct Square {
  std::int64_t n = device_sizes().side;
  DeviceArray<float> r = random_there<float>(n * n, 1), w = random_there<float>(n * n, 2);
  DeviceArray<float> row{std::vector<float>(count(n), 1.0F)};
  DeviceArray<float> col{std::vector<float>(count(n), 1.0F)};

  FactoredRoots roots() const { return {span_of(row), span_of(col), 1e-8F}; }
  double bytes(double each) const { return bytes_of(n * n, each); }
};

void factored(benchmark::State& state) {
  const Square c;
  const DeviceArray<float> m(std::vector<float>(count(c.n * c.n)));
  run_on_device(state, c.bytes(16), 0, &Roof::triad_gb_per_s, [&](StreamRef stream) {
    factored_adam_direction<float>(MatrixView<const float>(c.r.data(), c.n, c.n), 1.0F,
                                   MatrixView<const float>(m.data(), c.n, c.n),
                                   matrix_of(m, c.n, c.n), c.roots(), AdamHyper{},
                                   matrix_of(c.w, c.n, c.n), stream);
  });
}

std::vector<ResidualVerdict> trains() { return {{.alpha = 1e-6F, .trains = true}}; }

// Three variants: the means alone; a moment that advances by them; also the scan of the matrix.
enum class MeansUse { kNone, kMoment, kScan };

void moments(benchmark::State& state, MeansUse use) {
  const Square c;
  const DeviceArray<ResidualVerdict> verdict(trains());
  const DeviceArray<ScanResult> scan(std::vector<ScanResult>(1));
  const DeviceArray<float> rows(std::vector<float>(count(c.n), 1.0F)),
      cols(std::vector<float>(count(c.n), 1.0F));
  MeansPass pass{.means = {span_of(c.row), span_of(c.col)}};
  if (use != MeansUse::kNone) {
    pass.verdict = verdict.data();
    pass.from = pass.to = {span_of(rows), span_of(cols)};
    pass.step = {.beta2 = 0.999, .eps = 1e-8};
  }
  if (use == MeansUse::kScan) pass.scan = scan.data();
  run_on_device(state, c.bytes(4), c.bytes(4), &Roof::read_gb_per_s,
                [&](StreamRef stream) { mean_squares(any_of(c.r, c.n, c.n), pass, 1.0F, stream); });
}

void clip(benchmark::State& state) {
  const Square c;
  const DeviceArray<ResidualVerdict> verdict(trains());
  run_on_device(state, c.bytes(4), c.bytes(5), &Roof::read_gb_per_s, [&](StreamRef stream) {
    residual_clip(verdict.data(), any_of(c.r, c.n, c.n), c.roots(), 1e-6, 1, stream);
  });
}

void apply(benchmark::State& state) {
  const Square c;
  const DeviceArray<ResidualVerdict> verdict(trains());
  run_on_device(state, c.bytes(12), c.bytes(5), &Roof::triad_gb_per_s, [&](StreamRef stream) {
    residual_apply(any_of(c.w, c.n, c.n), {}, any_of(c.r, c.n, c.n), c.roots(), {.decay = 1.0F},
                   verdict.data(), stream);
  });
}

void roof_row(benchmark::State& state, double Roof::*which, const char* counter) {
  std::vector<double> rates;
  for ([[maybe_unused]] const auto _ : state) {
    rates.push_back(device_roof_now(which));
    state.SetIterationTime(1 / rates.back());
  }
  state.counters[counter] = median(rates);
}

}  // namespace

void add_passes() {
  const std::pair<const char*, double Roof::*> roofs[] = {{"roof_read", &Roof::read_gb_per_s},
                                                          {"roof_copy", &Roof::copy_gb_per_s},
                                                          {"roof_triad", &Roof::triad_gb_per_s},
                                                          {"roof_update", &Roof::update_gb_per_s}};
  for (const auto& [name, which] : roofs) {
    add_row(name, [which = which](benchmark::State& s) { roof_row(s, which, "gb_per_s"); });
  }
  add_row("roof_multiply_add",
          [](benchmark::State& s) { roof_row(s, &Roof::gflop_per_s, "gflop_per_s"); });
  add_row("scan<float>", scan<float>);
  add_row("scan<bf16>", scan<bf16>);
  add_row("scan_copy<float, bf16>", scan_copy);
  add_row("gradient_copy<bf16, bf16>", copy);
  for (const NoiseFamily family :
       {NoiseFamily::kRademacher, NoiseFamily::kByteQuantile, NoiseFamily::kGaussian}) {
    add_row("perturb<bf16>/" + std::string(to_string(family)),
            [=](benchmark::State& s) { perturbed(s, family); });
  }
  for (const std::int64_t pending : {0, 4, 400}) {
    add_row("perturb_low_rank<bf16>/" + std::to_string(pending),
            [=](benchmark::State& s) { perturbed_low_rank(s, pending); });
  }
  const std::pair<const char*, WireFormat> formats[] = {
      {"f32", WireFormat::kF32}, {"bf16", WireFormat::kBF16}, {"int8", WireFormat::kInt8}};
  for (const auto& [name, format] : formats) {
    for (const bool packs : {true, false}) {
      add_row(std::string(packs ? "pack/" : "unpack/") + name,
              [=, format = format](benchmark::State& s) { wire(s, format, packs); });
    }
  }
  add_row("fill_bits<u16>", noise);
  add_row("adam_direction<bf16>", direction);
  add_row("factored_adam_direction<float>", factored);
  const std::pair<const char*, MeansUse> uses[] = {
      {"", MeansUse::kNone}, {"/moment", MeansUse::kMoment}, {"/scan", MeansUse::kScan}};
  for (const auto& [name, use] : uses) {
    add_row("residual_moments<float>" + std::string(name),
            [use = use](benchmark::State& s) { moments(s, use); });
  }
  add_row("residual_clip<float>", clip);
  add_row("residual_apply<float>", apply);
}

}  // namespace sluiceway::bench
