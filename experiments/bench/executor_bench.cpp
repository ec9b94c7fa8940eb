// Measures the executor's own cost: payloads go through four lanes whose tasks do nothing.
//
//   inline    streams that run a task inside enqueue(): the executor's own work, on one thread
//   workers   streams with a thread each, as the host device has them: wake-ups included
//
// Counter: us_per_payload, from the creation of a payload to the end of its step.
#include <benchmark/benchmark.h>

#include <string>
#include <utility>
#include <vector>

#include "experiments/schedule/four_lanes.h"
#include "runtime/schedule/executor.h"
#include "runtime/trace/trace.h"

namespace sluiceway::bench {
namespace {

using experiment::kApplyLane, experiment::kHostLane, experiment::kLaneNames, experiment::kLanePlan;

constexpr int kKeys = 64;  // Payloads a step, as a model of some ten blocks has.

Payload empty_payload(int key, int& tasks) {
  Payload payload;
  payload.key = key;
  payload.deadline = static_cast<std::uint64_t>(key);
  payload.name = "blocks.mlp.weight";
  payload.hops.reserve(kLaneNames.size());
  for (LaneId lane = 0; lane <= kApplyLane; ++lane) {
    payload.hops.push_back({lane, [&tasks](StreamRef) { benchmark::DoNotOptimize(tasks); }});
  }
  payload.hold_before = kHostLane;
  return payload;
}

void step_of_empty_lanes(benchmark::State& state, std::vector<Stream>& streams) {
  Executor::Config config;
  for (std::size_t i = 0; i < streams.size(); ++i) {
    config.lanes.push_back({.name = kLaneNames[i], .stream = &streams[i]});
  }
  config.plan = kLanePlan;
  config.key_count = kKeys;
  Executor executor(std::move(config));
  int tasks = 0;
  const double begin_us = now_us();
  for (auto _ : state) {
    for (int key = kKeys - 1; key >= 0; --key) executor.submit(empty_payload(key, tasks));
    executor.release();
    for (int key = 0; key < kKeys; ++key) benchmark::DoNotOptimize(executor.wait(key));
  }
  const double payloads = static_cast<double>(kKeys) * static_cast<double>(state.iterations());
  state.counters["us_per_payload"] = (now_us() - begin_us) / payloads;
}

void executor_inline(benchmark::State& state) {
  std::vector<Stream> streams;
  for (std::size_t i = 0; i < kLaneNames.size(); ++i) {
    streams.push_back(Stream::borrowed(StreamRef::host()));
  }
  step_of_empty_lanes(state, streams);
}

void executor_workers(benchmark::State& state) {
  std::vector<Stream> streams;
  streams.reserve(kLaneNames.size());
  for (const char* name : kLaneNames) streams.push_back(Stream::host({.name = name}));
  step_of_empty_lanes(state, streams);
}

BENCHMARK(executor_inline)->UseRealTime()->Unit(benchmark::kMicrosecond);
BENCHMARK(executor_workers)->UseRealTime()->Unit(benchmark::kMicrosecond);

}  // namespace
}  // namespace sluiceway::bench
