// Compares a Drive with a bare io_uring loop and fio: same blocks, depth, mix and file, in turns.
//
// An iteration is one round of each, in an order that turns; roof_ratio is the median of the
// drive's rate over the better one of the others in the same iteration, ratio_low and ratio_high
// its 90 % interval by order statistics. Set SLUICEWAY_BENCH_GIB for the size of a round (default
// 0.25) and SLUICEWAY_BENCH_FOLDER for the file system (default: the temporary folder). fio takes
// part if it is installed and, for huge pages, has a pool of them (sysctl vm.nr_hugepages=160);
// otherwise the label says why not. Rates count reads and writes together.
#include <benchmark/benchmark.h>
#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <filesystem>
#include <functional>
#include <numeric>
#include <string>
#include <vector>

#include "experiments/bench/fio_round.h"
#include "experiments/bench/uring_loop.h"
#include "kernels/base/check.h"
#include "runtime/memory/pinned_pool.h"
#include "runtime/store/drive_rate.h"
#include "runtime/store/open_io.h"

namespace sluiceway::bench {
namespace {

constexpr std::uint64_t kFileBlocks = 127;  // Odd: blocks read in one pass are written in the next.
constexpr std::size_t kDepth = 32;

double environment(const char* name, double otherwise) {
  const char* const text = std::getenv(name);
  return text == nullptr ? otherwise : std::atof(text);
}

Budget& everything() {
  static Budget budget{Budget::Limits{0, 0, Budget::kUnlimited, 0}};
  return budget;
}

// Processor seconds of this process and of the children that it waited for.
double processor_seconds() {
  double seconds = 0;
  for (const int whose : {RUSAGE_SELF, RUSAGE_CHILDREN}) {
    rusage used{};
    getrusage(whose, &used);
    for (const timeval& t : {used.ru_utime, used.ru_stime}) {
      seconds += static_cast<double>(t.tv_sec) + 1e-6 * static_cast<double>(t.tv_usec);
    }
  }
  return seconds;
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

// One way to move a round, and the times of its rounds so far.
struct Side {
  const char* name;
  std::function<double()> seconds_of_round;
  std::vector<double> seconds = {};
  double processor = 0;
};

// Runs each side once; the first side changes with `iteration`.
void run_all(std::vector<Side>& sides, std::size_t iteration) {
  for (std::size_t turn = 0; turn < sides.size(); ++turn) {
    Side& side = sides[(iteration + turn) % sides.size()];
    const double before = processor_seconds();
    side.seconds.push_back(side.seconds_of_round());
    side.processor += processor_seconds() - before;
  }
}

// The first side is ours.
void report(benchmark::State& state, const std::vector<Side>& sides, double gb_of_a_round) {
  std::vector<double> ratios;
  for (std::size_t i = 0; i < sides[0].seconds.size(); ++i) {
    double best = sides[1].seconds[i];
    for (std::size_t k = 2; k < sides.size(); ++k) best = std::min(best, sides[k].seconds[i]);
    ratios.push_back(best / sides[0].seconds[i]);
  }
  std::sort(ratios.begin(), ratios.end());
  const auto n = static_cast<double>(ratios.size());
  // Ranks around the median that hold it with 90 %, by the normal form of the binomial.
  const double reach = 0.5 * 1.645 * std::sqrt(n);
  const auto at = [&](double rank) {
    return ratios[static_cast<std::size_t>(std::clamp(rank, 0.0, n - 1))];
  };
  state.counters["roof_ratio"] = at(n / 2);
  state.counters["ratio_low"] = at(std::floor(n / 2 - reach));
  state.counters["ratio_high"] = at(std::ceil(n / 2 + reach));
  for (const Side& side : sides) {
    const double gb = gb_of_a_round * n;
    state.counters[concat(side.name, "gb_per_s")] =
        gb / std::accumulate(side.seconds.begin(), side.seconds.end(), 0.0);
    state.counters[concat(side.name, "cpu_s_per_gb")] = side.processor / gb;
  }
}

// Reason why the roof cannot be measured (no io_uring, or no O_DIRECT in the folder), or empty.
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

// Tries a round of fio; returns the reason why it fails, or empty.
std::string why_no_fio(const std::function<double()>& round) {
  if (!has_fio()) return "without fio, which is not installed";
  try {
    round();
    return "";
  } catch (const Error& error) {
    return concat("without fio: ", error.what());
  }
}

void drive_beside_others(benchmark::State& state, IoChoice choice, Pages pages) {
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
  const auto fio = [&] { return seconds_of_fio(round, pages == Pages::kHuge); };
  round.blocks = kFileBlocks;
  round.requests = 2 * kFileBlocks;
  bare();  // Every block is written once first: fresh extents are slower.
  std::vector<Side> sides{{"", ours}, {"bare_", bare}};
  if (const std::string reason = why_no_fio(fio); reason.empty()) {
    sides.push_back({"fio_", fio});
  } else {
    state.SetLabel(reason);
  }
  const double gib = environment("SLUICEWAY_BENCH_GIB", 0.25);
  round.requests =
      static_cast<std::uint64_t>(gib * 0x1p30 / static_cast<double>(round.block_bytes));
  std::size_t iteration = 0;
  for (auto _ : state) run_all(sides, iteration++);
  report(state, sides, static_cast<double>(round.requests * round.block_bytes) * 1e-9);
  state.counters["huge_mib"] = static_cast<double>(pool.huge_bytes()) * 0x1p-20;
}

// Runs the requested number of rounds, or as many as Google Benchmark chooses.
void rounds(benchmark::internal::Benchmark* bench) {
  bench->Unit(benchmark::kMillisecond)->UseRealTime();
  if (const double asked = environment("SLUICEWAY_BENCH_ROUNDS", 0); asked >= 1) {
    bench->Iterations(static_cast<benchmark::IterationCount>(asked));
  }
}

#define SLUICEWAY_DRIVE_BENCH(name, choice, pages) \
  BENCHMARK_CAPTURE(drive_beside_others, name, IoChoice::choice, Pages::pages)->Apply(rounds)

SLUICEWAY_DRIVE_BENCH(uring_huge, kUring, kHuge);
SLUICEWAY_DRIVE_BENCH(uring_ordinary, kUring, kOrdinary);
SLUICEWAY_DRIVE_BENCH(posix_huge, kPosix, kHuge);
SLUICEWAY_DRIVE_BENCH(posix_ordinary, kPosix, kOrdinary);

}  // namespace
}  // namespace sluiceway::bench
