// Bounded waits of SubspaceEngine: close() with a stuck lane, and calls that are interrupted.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>
#include <thread>

#include "kernels/base/error.h"
#include "tests/runtime/engine/subspace/training.h"
#include "tests/support/tolerance.h"

namespace sluiceway::test {
namespace {

using testing::HasSubstr;
using testing::ThrowsMessage;

SubspaceOptions slow_options() {
  SubspaceOptions options = options_with(Order::kEdf, NormChoice::kExact);
  options.lanes.d2h.latency_us = 600e3;
  return options;
}

TEST(SubspaceEngineCloseTest, AStuckLaneIsGivenUpAndNamedWithItsWeight) {
  Training training(slow_options(), "identity");
  std::vector<Matrix> g = training.gradients();
  training.backward(g);
  training.step();
  const auto stuck = ThrowsMessage<Timeout>(HasSubstr("executor: lane d2h, payload w2: no hop"));
  EXPECT_THAT([&] { training.engine->close(std::chrono::milliseconds(100)); }, stuck);
  EXPECT_THAT([&] { training.engine->finish(std::chrono::milliseconds(100)); }, stuck);
  EXPECT_THAT([&] { training.engine->synchronize(); }, stuck);
  while (!training.engine->idle()) std::this_thread::sleep_for(std::chrono::milliseconds(1));
  training.engine->finish();  // Nothing runs any more, so it does not throw.
}

TEST(SubspaceEngineCloseTest, LanesThatEndAreWaitedForWithoutAWord) {
  Training training(slow_options(), "identity");
  std::vector<Matrix> g = training.gradients(), again = training.gradients();
  training.backward(g);
  training.step();
  training.expect_step(g, 1);
  training.engine->close();
  for (std::size_t w = 0; w < g.size(); ++w) {
    EXPECT_TRUE(all_near(training.weights[w], training.expected[w], {.abs = 2e-6}));
  }
}

TEST(SubspaceEngineCallOffTest, ADropThatIsCalledOffLeavesTheGradientWhole) {
  SubspaceOptions options = slow_options();
  bool call_off = true;
  options.lanes.check_interrupt = [&call_off] {
    if (call_off) throw Unavailable("called off");
  };
  Training training(options, "identity");
  std::vector<Matrix> g = training.gradients();
  training.backward(g);
  EXPECT_THROW(training.engine->drop(), Unavailable);
  EXPECT_TRUE(training.engine->has_gradient());
  call_off = false;
  training.step();
  training.expect_step(g, 1);
  training.engine->synchronize();
  for (std::size_t w = 0; w < g.size(); ++w) {
    EXPECT_TRUE(all_near(training.weights[w], training.expected[w], {.abs = 2e-6}));
  }
}

}  // namespace
}  // namespace sluiceway::test
