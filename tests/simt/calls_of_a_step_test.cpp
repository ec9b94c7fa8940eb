// Calls of the CUDA runtime for each weight and step of the subspace engine, in steady state.
//
// The launching thread limits a step of many small weights, so the number of calls is a promise
// (docs/schedule.md section 5 has the table that this test prints).
#include <gtest/gtest.h>

#include <cstdio>
#include <map>
#include <string>

#include "tests/runtime/engine/subspace/device_run.h"
#include "tests/support/simt/simt.h"
#include "tests/support/stream_work.h"

namespace sluiceway::test {
namespace {

struct StepCase {
  std::string name;
  RunCase run;
  double most_launches, most_events;  // For a weight and step.

  friend void PrintTo(const StepCase& each, std::ostream* out) { *out << each.name; }
};

class CallsOfAStepTest : public testing::TestWithParam<StepCase> {};

TEST_P(CallsOfAStepTest, AreFewAndMakeNoEvent) {
  // After the steps that overflow and those without gradients.
  constexpr int kWarm = 9, kCounted = 8;
  DeviceRun run(DeviceId::cuda(0), GetParam().run);
  std::map<std::string, double> calls;
  for (int step = 0; step < kWarm + kCounted; ++step) {
    run.forward(step);
    const Event forward = run.reached();
    forward.wait();
    simt::reset_calls();
    run.backward(step);
    run.end_step();
    for (int i = 0; i < DeviceRun::kWeights; ++i) run.engine().acquire(i, run.compute());
    while (!run.engine().idle()) sleep_ms(1);
    if (step < kWarm) continue;
    for (const auto& [thread, by_call] : simt::calls().by_thread) {
      for (const auto& [call, count] : by_call) {
        calls[call] += static_cast<double>(count) / (kCounted * DeviceRun::kWeights);
      }
    }
  }
  // One launch of a weight and step belongs to the test, which makes the gradient.
  calls["cudaLaunchKernelEx"] -= 1;
  std::printf("%s, for a weight and step:\n", GetParam().name.c_str());
  for (const auto& [call, count] : calls) std::printf("  %-28s %6.2f\n", call.c_str(), count);
  EXPECT_LE(calls["cudaLaunchKernelEx"], GetParam().most_launches);
  EXPECT_GT(calls["cudaLaunchKernelEx"], 0);
  EXPECT_LE(calls["cudaEventRecord"], GetParam().most_events);
  EXPECT_EQ(calls["cudaEventCreateWithFlags"], 0);
  EXPECT_EQ(calls["cudaEventDestroy"], 0);
  EXPECT_EQ(calls["cudaMalloc"], 0);
  EXPECT_EQ(calls["cudaFree"], 0);
}

// Applied at once, it leaves no work to a lane: the events are those of a whole step.
StepCase residual_alone(std::string name, bool at_once) {
  return {name,
          {.name = name,
           .codec = "none",
           .residual = ResidualKind::kFactored,
           .at_once = at_once,
           .reloads = false},
          at_once ? 4.0 : 5.0,
          at_once ? 1.0 : 8.5};
}

StepCase core(std::string name, const char* codec, ResidualKind residual, double most) {
  return {name,
          {.name = name,
           .codec = codec,
           .wire = WireFormat::kBF16,
           .residual = residual,
           .reloads = false},
          most,
          14.5};
}

INSTANTIATE_TEST_SUITE_P(
    Simt, CallsOfAStepTest,
    testing::Values(residual_alone("residual_alone", false),
                    residual_alone("residual_at_once", true),
                    core("block_random", "block_random", ResidualKind::kNone, 3),
                    core("block_random_and_residual", "block_random", ResidualKind::kFactored, 8),
                    core("svd", "svd", ResidualKind::kNone, 3)),
    [](const auto& param) { return param.param.name; });

}  // namespace
}  // namespace sluiceway::test
