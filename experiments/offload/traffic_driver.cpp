// Counts bytes over disk and link in whole steps of the offload engine, without a model or Python.
//
//   traffic_driver FOLDER PARAMETERS STEPS MICRO_BATCHES CODEC MAX_NORM POLICY SPILL PARK
//
// CODEC is identity or block_random (f = 1/2). POLICY is spill or speculative. SPILL is gradient or
// core. PARK is none or all: the weights that wait in host memory in a speculative step. Tensors
// are 2048 x 2048 in bf16; each gets the same generated gradient, scaled by its step. MAX_NORM 0
// means no clip. FOLDER - keeps the states in host memory. Prints one JSON object: bytes by our
// counters and by the kernel's, between two commits, seconds, and memory: what the engine counts,
// and the peak of the process beside weights and gradient.
#include <chrono>
#include <cstdlib>
#include <filesystem>
#include <iostream>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "experiments/offload/kernel_bytes.h"
#include "kernels/base/check.h"
#include "runtime/engine/offload/offload_engine.h"

namespace sluiceway {
namespace {

constexpr std::int64_t kWidth = 2048;

struct Arguments {
  std::string folder;
  std::int64_t parameters = 0;
  int steps = 0;
  int micro_batches = 1;
  std::string codec;
  double max_norm = 0;
  bool is_speculative = false, keeps_cores = false, parks = false;
};

Arguments parse(int count, char** words) {
  SLUICEWAY_CHECK(
      count == 10, "traffic_driver: ", count - 1,
      " arguments, expected FOLDER PARAMETERS STEPS MICRO_BATCHES CODEC MAX_NORM POLICY "
      "SPILL PARK");
  const auto is = [words](int at, const char* name) { return words[at] == std::string(name); };
  return {words[1],    std::atoll(words[2]), std::atoi(words[3]),  std::atoi(words[4]),
          words[5],    std::atof(words[6]),  is(7, "speculative"), is(8, "core"),
          is(9, "all")};
}

std::string store_path(const Arguments& arguments) {
  return arguments.folder + "/traffic_driver.store";
}

OffloadOptions options_of(const Arguments& arguments) {
  OffloadOptions options(DeviceId::host());
  options.lanes.limits.fill(Budget::kUnlimited);
  options.gate.max_norm = arguments.max_norm;
  options.gate.promised_backwards = arguments.micro_batches;
  if (arguments.folder != "-") options.store.drives = {store_path(arguments)};
  options.cores.codec.name = arguments.codec;
  options.cores.codec.ratio = 0.5;
  if (arguments.is_speculative) options.policy = UpdatePolicy::kSpeculative;
  if (arguments.keeps_cores) options.cores.spill = CoreSpill::kCore;
  if (arguments.parks) options.park_bytes = Budget::kUnlimited;
  return options;
}

std::vector<TensorSpec> specs_of(const Arguments& arguments) {
  std::vector<TensorSpec> specs;
  for (std::int64_t left = arguments.parameters; left >= kWidth * kWidth; left -= kWidth * kWidth) {
    specs.push_back({"weight" + std::to_string(specs.size()),
                     {kWidth, kWidth},
                     DType::kBF16,
                     arguments.codec != "identity"});
  }
  return specs;
}

// Values of about +-0.01, from a generator that takes hardly any time.
std::vector<std::uint16_t> gradient_of(int step) {
  std::vector<std::uint16_t> bits(static_cast<std::size_t>(kWidth * kWidth));
  auto word = static_cast<std::uint32_t>(step);
  for (std::uint16_t& each : bits) {
    word = word * 1664525 + 1013904223;
    each = static_cast<std::uint16_t>(0x3C00 | ((word >> 16) & 0x80FF));
  }
  return bits;
}

nlohmann::json run(const Arguments& arguments) {
  std::vector<TensorSpec> specs = specs_of(arguments);
  const std::size_t count = specs.size();
  std::vector<std::vector<std::uint16_t>> weights(
      count, std::vector<std::uint16_t>(static_cast<std::size_t>(kWidth * kWidth)));
  std::vector<AnyMatrix> views;
  views.reserve(count);
  for (auto& weight : weights) {
    views.push_back({weight.data(), 1, kWidth * kWidth, kWidth * kWidth, DType::kBF16});
  }
  OffloadEngine engine(options_of(arguments), std::move(specs));
  engine.begin(views);
  (void)engine.take_stats();
  const std::vector<TensorHyper> hyper(count, {1e-3, 0.9, 0.999, 1e-8, 0.01});
  const KernelBytes before = kernel_bytes();
  nlohmann::json seconds = nlohmann::json::array();
  int clipped = 0;
  for (int step = 1; step <= arguments.steps; ++step) {
    const auto begin = std::chrono::steady_clock::now();
    const auto gradient = std::make_shared<std::vector<std::uint16_t>>(gradient_of(step));
    engine.expect(hyper, 1);
    for (int batch = 0; batch < arguments.micro_batches; ++batch) {
      for (std::size_t t = count; t-- > 0;) {
        engine.add_gradient(static_cast<int>(t),
                            {gradient->data(), 1, kWidth * kWidth, kWidth * kWidth, DType::kBF16},
                            gradient, StreamRef::host());
      }
      engine.end_backward(false);
    }
    clipped += engine.step({hyper, views, 1, 0, {}, false}).clip_factor < 1 ? 1 : 0;
    engine.commit();
    const std::chrono::duration<double> took = std::chrono::steady_clock::now() - begin;
    seconds.push_back(took.count());
  }
  const KernelBytes after = kernel_bytes();
  const OffloadStats stats = engine.take_stats();
  const auto used = [&](Tier tier) { return stats.use.used[static_cast<std::size_t>(tier)]; };
  const std::uint64_t trained = (count + 1) * kWidth * kWidth * sizeof(std::uint16_t);
  return {{"host", used(Tier::kHost)},
          {"pinned", used(Tier::kPinned)},
          {"process", resident_peak() - trained},
          {"parameters", static_cast<std::int64_t>(count) * kWidth * kWidth},
          {"micro_batches", arguments.micro_batches},
          {"codec", arguments.codec},
          {"max_norm", arguments.max_norm},
          {"steps", arguments.steps},
          {"clipped", clipped},
          {"seconds", seconds},
          {"read", stats.disk_read},
          {"written", stats.disk_written},
          {"kernel_read", after.read - before.read},
          {"kernel_written", after.written - before.written},
          {"d2h", stats.use.d2h_bytes},
          {"h2d", stats.use.h2d_bytes}};
}

}  // namespace
}  // namespace sluiceway

int main(int count, char** words) {
  try {
    const sluiceway::Arguments arguments = sluiceway::parse(count, words);
    std::cout << sluiceway::run(arguments).dump() << "\n";
    std::filesystem::remove(sluiceway::store_path(arguments));
    return 0;
  } catch (const std::exception& error) {
    std::cerr << error.what() << "\n";
    return 1;
  }
}
