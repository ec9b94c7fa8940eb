// A C++ user saves every weight and continues in another engine with the same bits; broken states
// change nothing.
#include "runtime/engine/subspace/weight_state.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "kernels/base/error.h"
#include "tests/runtime/engine/subspace/training.h"

namespace sluiceway::test {
namespace {

using testing::HasSubstr;
using testing::ThrowsMessage;

// A state that owns its memory.
struct Saved {
  explicit Saved(const WeightState& live)
      : state(live),
        m(live.exp_avg.begin(), live.exp_avg.end()),
        v(live.exp_avg_sq.begin(), live.exp_avg_sq.end()),
        residual(live.residual.begin(), live.residual.end()) {
    state.exp_avg = m;
    state.exp_avg_sq = v;
    state.residual = residual;
  }
  Saved(const Saved&) = delete;

  WeightState state;
  std::vector<float> m, v, residual;
};

using Mode = std::tuple<std::string, NormChoice, SecondMoment>;
class WeightStateTest : public testing::TestWithParam<Mode> {
 protected:
  Training training() const {
    const auto& [codec, norm, second] = GetParam();
    const ResidualKind residual =
        codec == "identity" ? ResidualKind::kNone : ResidualKind::kFactored;
    return {options_with(Order::kEdf, norm, 0.5),
            codec,
            WireFormat::kBF16,
            CoreTier::kHost,
            residual,
            second};
  }

  static void step(Training& training) {
    std::vector<Matrix> g = training.gradients();
    training.backward(g);
    training.step();
    training.engine->synchronize();
  }
};

TEST_P(WeightStateTest, AnEngineThatLoadsItGoesOnWithTheSameBits) {
  Training first = training(), second = training();
  for (int i = 0; i < 3; ++i) {
    step(first);
    second.gradients();  // Advances to the same random numbers.
  }
  second.weights = first.weights;
  second.engine->set_committed_steps(first.engine->committed_steps());
  for (int index = 0; index < 3; ++index) {
    const Saved saved(first.engine->save_weight(index));
    EXPECT_EQ(saved.state.step, 3);
    second.engine->check_weight(index, saved.state);
    second.engine->load_weight(index, saved.state);
  }
  for (int i = 0; i < 3; ++i) {
    step(first);
    step(second);
  }
  EXPECT_EQ(first.weights, second.weights);
}

TEST_P(WeightStateTest, ABrokenStateIsRefusedAndChangesNothing) {
  Training broken = training(), untouched = training();
  step(broken);
  step(untouched);
  Saved saved(broken.engine->save_weight(1));
  const std::vector<WeightState> wrong = [&] {
    std::vector<WeightState> states(5, saved.state);
    states[0].exp_avg = states[0].exp_avg.subspan(1);
    states[1].exp_avg_sq = {};
    states[2].codec.pop_back();
    states[3].step = -1;
    states[4].backwards = 0;
    return states;
  }();
  for (float& x : saved.m) x = -3;  // Left behind by a load that stopped half way.
  for (const WeightState& state : wrong) {
    EXPECT_THROW(broken.engine->check_weight(1, state), Error);
    EXPECT_THROW(broken.engine->load_weight(1, state), Error);
  }
  step(broken);
  step(untouched);
  EXPECT_EQ(broken.weights, untouched.weights);
}

INSTANTIATE_TEST_SUITE_P(
    Engine, WeightStateTest,
    testing::Combine(testing::Values("identity", "block_random"),
                     testing::Values(NormChoice::kExact, NormChoice::kSpeculative),
                     testing::Values(SecondMoment::kFull, SecondMoment::kFactored)));

TEST(WeightStateErrorTest, SizesAndTheWeightAreNamed) {
  Training training(options_with(Order::kEdf, NormChoice::kExact), "identity");
  WeightState state = training.engine->save_weight(2);
  state.exp_avg = state.exp_avg.first(7);
  EXPECT_THAT([&] { training.engine->load_weight(2, state); },
              ThrowsMessage<InvalidArgument>(
                  HasSubstr("exp_avg of w2 has 7 elements, expected 289; each of codec, ratio")));
}

}  // namespace
}  // namespace sluiceway::test
