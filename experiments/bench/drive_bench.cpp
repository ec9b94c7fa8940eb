// A Drive beside a bare io_uring loop: the same blocks, depth, mix and file, in turns.
//
// An iteration is one round of each, in alternating order; roof_ratio is the median of the ratios
// of such pairs, ratio_low and ratio_high its 90 % interval by order statistics. Set
// SLUICEWAY_BENCH_GIB for the size of a round (default 0.25) and SLUICEWAY_BENCH_FOLDER for the
// file system (default: the temporary folder). Rates count reads and writes together.
#include <benchmark/benchmark.h>
#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <filesystem>
#include <string>
#include <vector>

#include "experiments/bench/uring_loop.h"
#include "kernels/base/check.h"
#include "runtime/memory/pinned_pool.h"
#include "runtime/store/drive_rate.h"
#include "runtime/store/open_io.h"

namespace sluiceway::bench {
namespace {

constexpr std::uint64_t kFileBlocks = 127;  // Odd: what was read is written the next time around.
constexpr std::size_t kDepth = 32;

double environment(const char* name, double otherwise) {
  const char* const text = std::getenv(name);
  return text == nullptr ? otherwise : std::atof(text);
}

Budget& everything() {
  static Budget budget{Budget::Limits{0, 0, Budget::kUnlimited, 0}};
  return budget;
}

double processor_seconds() {
  rusage used{};
  getrusage(RUSAGE_SELF, &used);
  const auto seconds = [](const timeval& t) {
    return static_cast<double>(t.tv_sec) + 1e-6 * static_cast<double>(t.tv_usec);
  };
  return seconds(used.ru_utime) + seconds(used.ru_stime);
}

class BenchFile {
 public:
  explicit BenchFile(std::size_t block_bytes) {
    const char* const folder = std::getenv("SLUICEWAY_BENCH_FOLDER");
    path_ = concat(folder != nullptr ? folder : std::filesystem::temp_directory_path().c_str(),
                   "/sluiceway_drive_bench_", getpid());
    create_drive_file(path_, kFileBlocks * block_bytes);
  }
  BenchFile(const BenchFile&) = delete;
  BenchFile& operator=(const BenchFile&) = delete;
  ~BenchFile() { std::filesystem::remove(path_); }
  const std::string& path() const noexcept { return path_; }

 private:
  std::string path_;
};

struct Pairs {
  std::vector<double> ratios;
  double drive_seconds = 0, drive_processor = 0, bare_processor = 0;
};

void report(benchmark::State& state, Pairs& pairs, double gb_of_a_round) {
  std::vector<double>& ratios = pairs.ratios;
  std::sort(ratios.begin(), ratios.end());
  const auto n = static_cast<double>(ratios.size());
  // Ranks around the median that hold it with 90 %, by the normal form of the binomial.
  const double reach = 0.5 * 1.645 * std::sqrt(n);
  const auto at = [&](double rank) {
    return ratios[static_cast<std::size_t>(std::clamp(rank, 0.0, n - 1))];
  };
  state.counters["gb_per_s"] = gb_of_a_round * n / pairs.drive_seconds;
  state.counters["roof_ratio"] = at(n / 2);
  state.counters["ratio_low"] = at(std::floor(n / 2 - reach));
  state.counters["ratio_high"] = at(std::ceil(n / 2 + reach));
  state.counters["cpu_s_per_gb"] = pairs.drive_processor / (gb_of_a_round * n);
  state.counters["bare_cpu_s_per_gb"] = pairs.bare_processor / (gb_of_a_round * n);
}

// Why the roof cannot be measured: no io_uring, or no O_DIRECT in the folder. Else empty.
std::string why_not() {
  try {
    const PinnedPool pool(everything(), DeviceId::host(), {.slab_bytes = 4096});
    const BenchFile file(4096);
    seconds_of_bare_loop({file.path(), 4096, 1, 1, 1, pool.slab()});
    return "";
  } catch (const Error& error) {
    return error.what();
  }
}

void drive_beside_bare_loop(benchmark::State& state, IoChoice choice, Pages pages) {
  if (const std::string reason = why_not(); !reason.empty()) {
    for (auto _ : state) {
    }
    return state.SetLabel("not run: " + reason);
  }
  Round round;
  const BenchFile file(round.block_bytes);
  const PinnedPool pool(everything(), DeviceId::host(),
                        {.slab_bytes = kDepth * round.block_bytes, .pages = pages});
  round.path = file.path();
  round.depth = kDepth;
  round.memory = pool.slab();
  const auto bare = [&] { return seconds_of_bare_loop(round); };
  const auto ours = [&] {
    Drive drive(open_io(round.path, {.io = choice, .depth = kDepth, .memory = round.memory}));
    return measure_rate(drive, {.mix = Mix::kBoth,
                                .block_bytes = round.block_bytes,
                                .blocks = round.blocks,
                                .depth = round.depth,
                                .memory = round.memory,
                                .most_requests = round.requests,
                                .flush = false})
        .seconds;
  };
  round.blocks = kFileBlocks;
  round.requests = 2 * kFileBlocks;
  bare();  // Every block is written once first: fresh extents are slower.
  const double gib = environment("SLUICEWAY_BENCH_GIB", 0.25);
  round.requests =
      static_cast<std::uint64_t>(gib * 0x1p30 / static_cast<double>(round.block_bytes));
  Pairs pairs;
  for (auto _ : state) {
    const auto timed = [](const auto& run, double& processor) {
      const double before = processor_seconds();
      const double seconds = run();
      processor += processor_seconds() - before;
      return seconds;
    };
    const bool bare_first = pairs.ratios.size() % 2 == 0;
    double bare_seconds = bare_first ? timed(bare, pairs.bare_processor) : 0;
    const double seconds = timed(ours, pairs.drive_processor);
    if (!bare_first) bare_seconds = timed(bare, pairs.bare_processor);
    pairs.drive_seconds += seconds;
    pairs.ratios.push_back(bare_seconds / seconds);
  }
  report(state, pairs, static_cast<double>(round.requests * round.block_bytes) * 1e-9);
  state.counters["huge_mib"] = static_cast<double>(pool.huge_bytes()) * 0x1p-20;
}

#define SLUICEWAY_DRIVE_BENCH(name, choice, pages)                                \
  BENCHMARK_CAPTURE(drive_beside_bare_loop, name, IoChoice::choice, Pages::pages) \
      ->Unit(benchmark::kMillisecond)                                             \
      ->UseRealTime()

SLUICEWAY_DRIVE_BENCH(uring_huge, kUring, kHuge);
SLUICEWAY_DRIVE_BENCH(uring_ordinary, kUring, kOrdinary);
SLUICEWAY_DRIVE_BENCH(posix_huge, kPosix, kHuge);
SLUICEWAY_DRIVE_BENCH(posix_ordinary, kPosix, kOrdinary);

}  // namespace
}  // namespace sluiceway::bench
