// pack() and unpack() of each wire format against the copy roof. 64 MiB of f32.
#include "experiments/bench/against_roof.h"
#include "experiments/bench/staggered_array.h"
#include "kernels/wire.h"

namespace sluiceway::bench {
namespace {

constexpr std::size_t kElems = std::size_t{16} << 20;

struct Core {
  explicit Core(WireFormat f)
      : format(f),
        wire(wire_bytes(f, static_cast<std::int64_t>(kElems)), std::byte{}),
        bytes(4.0 * kElems) {
    for (std::size_t i = 0; i < kElems; ++i) values[i] = static_cast<float>(i % 1009) - 504.0F;
    bytes += static_cast<double>(wire.size());
  }

  WireFormat format;
  StaggeredArray<float> values{kElems, 0.0F};
  StaggeredArray<std::byte> wire;
  double bytes;  // Bytes read plus bytes written.
};

void pack(benchmark::State& state, WireFormat format) {
  Core core(format);
  run_against_roof(state, core.bytes, &Roof::copy_gb_per_s, [&] {
    benchmark::DoNotOptimize(cpu::pack(format, core.values.view(), core.wire.span()));
  });
}

void unpack(benchmark::State& state, WireFormat format) {
  Core core(format);
  cpu::pack(format, core.values.view(), core.wire.span());
  run_against_roof(state, core.bytes, &Roof::copy_gb_per_s,
                   [&] { cpu::unpack(format, core.wire.view(), core.values.span()); });
}

BENCHMARK_CAPTURE(pack, f32, WireFormat::kF32)->UseManualTime();
BENCHMARK_CAPTURE(pack, bf16, WireFormat::kBF16)->UseManualTime();
BENCHMARK_CAPTURE(pack, int8, WireFormat::kInt8)->UseManualTime();
BENCHMARK_CAPTURE(unpack, f32, WireFormat::kF32)->UseManualTime();
BENCHMARK_CAPTURE(unpack, bf16, WireFormat::kBF16)->UseManualTime();
BENCHMARK_CAPTURE(unpack, int8, WireFormat::kInt8)->UseManualTime();

}  // namespace
}  // namespace sluiceway::bench
