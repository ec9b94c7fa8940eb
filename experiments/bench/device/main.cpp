// Every kernel on CUDA device 0.
//
//   bench_device [--tiny] [Google Benchmark's options]
//
// --tiny computes with sizes that show only that the code runs. Exits with 2 where there is no
// device.
#include <algorithm>
#include <iostream>
#include <string_view>

#include "experiments/bench/device/device_bench.h"
#include "kernels/base/error.h"

int main(int argc, char** argv) {
  using namespace sluiceway;
  char** const end = argv + argc;
  char** const rest = std::remove(argv, end, std::string_view("--tiny"));
  if (rest != end) bench::choose_tiny_sizes();
  argc = static_cast<int>(rest - argv);
  benchmark::Initialize(&argc, argv);
  if (benchmark::ReportUnrecognizedArguments(argc, argv)) return 1;
  try {
    check_device(DeviceId::cuda(0));
  } catch (const Error& error) {
    std::cerr << error.what() << '\n';
    return 2;
  }
  bench::add_passes();
  bench::add_project_rows();
  bench::add_libraries();
  benchmark::RunSpecifiedBenchmarks();
  benchmark::Shutdown();
  return 0;
}
