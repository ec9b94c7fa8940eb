// predict_makespan() against the closed forms of equal layers, bounds, and the orders' ranking.
#include "runtime/schedule/cost_model.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>

#include "kernels/base/error.h"
#include "tests/support/rng.h"

namespace sluiceway::test {
namespace {

using testing::HasSubstr;
using testing::ThrowsMessage;

constexpr Order kAllOrders[] = {Order::kBarrier, Order::kFcfs, Order::kPaper, Order::kEdf};
constexpr LanePlan kFourLanes{.gather_before = 1, .device_lane = 3};  // d2h, host, h2d, apply.
constexpr NormBarrier kBothBarriers[] = {NormBarrier::kNone, NormBarrier::kExact};

class CostModelTest : public testing::Test {
 protected:
  double between(double low, double high) { return rng.uniform(low, high); }

  // Makes times per layer of a transformer: `spread` varies all hops of a layer together (its
  // size), `jitter` each hop by itself.
  std::vector<LayerCost> layers(int count, double spread, double jitter, double apply = 0.3) {
    const double forward = between(0.3, 3), backward = forward * between(1.5, 3);
    const double o = between(0.1, 4), u = between(0.1, 4), h = between(0.1, 4);
    const double a = between(0, apply);
    std::vector<LayerCost> costs(static_cast<std::size_t>(count));
    for (LayerCost& c : costs) {
      const double size = between(1 - spread, 1 + spread);
      const auto of = [&](double mean) { return mean * size * between(1 - jitter, 1 + jitter); };
      c.forward = of(forward);
      c.backward = of(backward);
      for (const double mean : {o, u, h, a}) c.lanes.push_back(of(mean));
    }
    return costs;
  }

  double predict(const std::vector<LayerCost>& costs, Order order,
                 NormBarrier barrier = NormBarrier::kNone) {
    return predict_makespan(costs, kFourLanes, order, barrier, transition_layer(costs, kFourLanes));
  }

  Rng rng{20240610};
};

struct Sums {  // The letters of the closed forms.
  explicit Sums(const std::vector<LayerCost>& costs) {
    for (const LayerCost& c : costs) F += c.forward, B += c.backward;
    L = static_cast<double>(costs.size());
    o = costs[0].lanes[0], u = costs[0].lanes[1], h = costs[0].lanes[2];
    s = std::max({o, u, h});
  }
  double F = 0, B = 0, L = 0, o = 0, u = 0, h = 0, s = 0;
};

TEST_F(CostModelTest, FcfsOfEqualLayersIsTheClosedForm) {
  for (int i = 0; i < 300; ++i) {
    const auto costs = layers(1 + i % 67, 0, 0, 0);
    const Sums k(costs);
    const double closed =
        k.F + std::max(k.B + k.o + k.u + k.h, k.B / k.L + k.L * k.s + (k.o + k.u + k.h - k.s));
    EXPECT_NEAR(predict(costs, Order::kFcfs), closed, 1e-9 * closed);
  }
}

TEST_F(CostModelTest, EdfOfEqualLayersIsTheClosedFormWithinOneLayer) {
  for (int i = 0; i < 300; ++i) {
    const auto costs = layers(1 + i % 67, 0, 0, 0);
    const Sums k(costs);
    const double fill = k.o + k.u + k.h;
    const double closed = std::max(k.F + k.B + fill, k.L * k.s + (k.F + k.B) / k.L + (fill - k.s));
    const double simulated = predict(costs, Order::kEdf);
    EXPECT_GE(simulated, closed * (1 - 1e-9));
    EXPECT_LE(simulated, closed + (k.F + k.B) / k.L + fill);
  }
}

TEST_F(CostModelTest, EdfOfEqualLayersIsTheClosedFormWhereOneResourceBinds) {
  // Layer 31 arrived alone and went first, so two forwards follow the last payload.
  const double closed = 32 * 4.0 + (1 + 1) + (1 + 1);
  const std::vector<LayerCost> link(32, {1, 1, {4, 1, 1, 0}});
  EXPECT_NEAR(predict(link, Order::kEdf), closed + 1, 1e-9);
  const std::vector<LayerCost> compute(32, {2, 3, {1, 1, 1, 0}});
  EXPECT_NEAR(predict(compute, Order::kEdf), 32 * 5.0 + 3, 1e-9);
}

TEST_F(CostModelTest, BarrierOfEqualLayersIsTheClosedFormPlusItsFill) {
  for (int i = 0; i < 300; ++i) {
    const auto costs = layers(1 + i % 67, 0, 0, 0);
    const Sums k(costs);
    const double on_host = std::max(k.B + k.o, k.B / k.L + k.L * k.o);
    const double through = k.L * std::max(k.u, k.h) + std::min(k.u, k.h);
    EXPECT_NEAR(predict(costs, Order::kBarrier), k.F + on_host + through, 1e-9 * on_host);
    const double closed = k.F + std::max(k.B, k.L * k.o) + std::max(k.L * k.u, k.L * k.h);
    EXPECT_GE(k.F + on_host + through, closed);
    EXPECT_LE(k.F + on_host + through, closed + k.B / k.L + k.o + std::min(k.u, k.h));
  }
}

// The norm is known when the backward ends; then the host lane works through all layers in
// deadline order, and the last layer's forward comes last.
TEST_F(CostModelTest, ExactNormOfEqualHostBoundLayersIsBackwardThenHostThenOneForward) {
  const std::vector<LayerCost> costs(32, {1, 2, {1, 5, 1, 0}});
  const double expected = 32 * 2 + 32 * 5 + 1 + 1;
  EXPECT_NEAR(predict(costs, Order::kEdf, NormBarrier::kExact), expected, 1e-9);
  EXPECT_NEAR(predict(costs, Order::kFcfs, NormBarrier::kExact), 32 * 2 + 32 * 5 + 1 + 32, 1e-9);
}

TEST_F(CostModelTest, ExactNormNeverShortensAStep) {
  for (int i = 0; i < 200; ++i) {
    const auto costs = layers(8 + i % 57, 0, 0);
    for (const Order order : kAllOrders) {
      EXPECT_GE(predict(costs, order, NormBarrier::kExact) * (1 + 1e-12), predict(costs, order))
          << to_string(order);
    }
  }
}

TEST_F(CostModelTest, ExactNormChangesNothingUnderTheBarrier) {
  const auto costs = layers(31, 0.5, 0.3);
  EXPECT_EQ(predict(costs, Order::kBarrier, NormBarrier::kExact), predict(costs, Order::kBarrier));
}

TEST_F(CostModelTest, NoOrderBeatsTheLowerBound) {
  for (int i = 0; i < 400; ++i) {
    const auto costs = layers(1 + i % 67, 0.9, 0.5);
    for (const Order order : kAllOrders) {
      for (const NormBarrier barrier : kBothBarriers) {
        EXPECT_GE(predict(costs, order, barrier), lower_bound(costs)) << to_string(order);
      }
    }
  }
}

TEST_F(CostModelTest, EdfIsWithinThreePercentOfTheBestOtherOrder) {
  for (int i = 0; i < 600; ++i) {
    const auto costs = i % 2 == 0 ? layers(32, 0.5, 0.1) : layers(16 + i % 49, 0.5, 0.3);
    for (const NormBarrier barrier : kBothBarriers) {
      const double best =
          std::min({predict(costs, Order::kBarrier, barrier), predict(costs, Order::kFcfs, barrier),
                    predict(costs, Order::kPaper, barrier)});
      EXPECT_LE(predict(costs, Order::kEdf, barrier), 1.03 * best) << "set " << i;
    }
  }
}

TEST_F(CostModelTest, EdfOfEqualLayersIsNeverWorseThanAnotherOrder) {
  for (int i = 0; i < 300; ++i) {
    const auto costs = layers(1 + i % 67, 0, 0);
    for (const NormBarrier barrier : kBothBarriers) {
      for (const Order order : kAllOrders) {
        EXPECT_LE(predict(costs, Order::kEdf, barrier), predict(costs, order, barrier) * (1 + 1e-9))
            << to_string(order) << ", " << costs.size() << " layers";
      }
    }
  }
}

TEST_F(CostModelTest, WithoutLinkAStepIsForwardPlusBackward) {
  const std::vector<LayerCost> costs(5, {1, 2, {0, 0, 0, 0}});
  for (const Order order : kAllOrders) EXPECT_DOUBLE_EQ(predict(costs, order), 15.0);
  EXPECT_EQ(predict_makespan({}, kFourLanes, Order::kEdf, NormBarrier::kNone, 0), 0.0);
}

TEST_F(CostModelTest, OneLayerIsAChain) {
  const std::vector<LayerCost> costs = {{1, 2, {3, 4, 5, 6}}};
  for (const Order order : kAllOrders) {
    for (const NormBarrier barrier : kBothBarriers) {
      EXPECT_DOUBLE_EQ(predict(costs, order, barrier), 21.0);
    }
  }
}

TEST_F(CostModelTest, RejectsCostsThatAreNoTimes) {
  std::vector<LayerCost> costs(3, {1, 1, {1, 1, 1, 1}});
  costs[2].lanes[1] = -0.5;
  EXPECT_THAT([&] { predict(costs, Order::kEdf); },
              ThrowsMessage<InvalidArgument>(HasSubstr("layer 2 has a cost of -0.5 s")));
  costs[2].lanes[1] = std::nan("");
  EXPECT_THROW(predict(costs, Order::kEdf), InvalidArgument);
}

TEST_F(CostModelTest, TransitionLayerIsThePapersFormula) {
  // L - (B - (o + u + h)) / s = 32 - (64 - 6) / 4 = 17.5: 14 layers have passed, 18 have not.
  EXPECT_EQ(transition_layer(std::vector<LayerCost>(32, {1, 2, {1, 4, 1, 0}}), kFourLanes), 18);
  EXPECT_EQ(transition_layer(std::vector<LayerCost>(32, {1, 2, {1, 1, 1, 0}}), kFourLanes),
            0);  // Clamped.
  EXPECT_EQ(transition_layer(std::vector<LayerCost>(2, {1, 1, {9, 9, 9, 0}}), kFourLanes),
            2);  // Clamped.
  EXPECT_EQ(transition_layer(std::vector<LayerCost>(32, {1, 2, {0, 0, 0, 0}}), kFourLanes),
            0);  // No lane.
  EXPECT_EQ(transition_layer({}, kFourLanes), 0);
}

TEST_F(CostModelTest, LowerBoundIsTheBusiestResource) {
  EXPECT_DOUBLE_EQ(lower_bound(std::vector<LayerCost>(4, {1, 2, {1, 1, 1, 1}})), 12);
  EXPECT_DOUBLE_EQ(lower_bound(std::vector<LayerCost>(4, {1, 2, {5, 1, 1, 1}})), 20);
  EXPECT_DOUBLE_EQ(lower_bound(std::vector<LayerCost>(4, {1, 2, {1, 6, 1, 1}})), 24);
  EXPECT_DOUBLE_EQ(lower_bound(std::vector<LayerCost>(4, {1, 2, {1, 1, 7, 1}})), 28);
  EXPECT_DOUBLE_EQ(lower_bound({}), 0);
}

// Lanes that take no time are passed at once, wherever they are.
TEST_F(CostModelTest, SixLanesOfWhichTwoTakeNoTimeAreFourLanes) {
  const LanePlan six{.gather_before = 2, .device_lane = 5};  // d2h, read, host, write, h2d, apply.
  for (int i = 0; i < 100; ++i) {
    const auto four = layers(1 + i % 37, 0.5, 0.3);
    std::vector<LayerCost> wide = four;
    for (LayerCost& c : wide) {
      c.lanes.insert(c.lanes.begin() + 1, 0);
      c.lanes.insert(c.lanes.begin() + 3, 0);
    }
    EXPECT_EQ(transition_layer(wide, six), transition_layer(four, kFourLanes));
    EXPECT_EQ(lower_bound(wide), lower_bound(four));
    for (const Order order : kAllOrders) {
      for (const NormBarrier barrier : kBothBarriers) {
        EXPECT_EQ(predict_makespan(wide, six, order, barrier, 5),
                  predict_makespan(four, kFourLanes, order, barrier, 5))
            << to_string(order);
      }
    }
  }
}

TEST_F(CostModelTest, TwoLanesAreAnyTwo) {
  const LanePlan two{.gather_before = 1, .device_lane = std::nullopt};
  const std::vector<LayerCost> costs(8, {1, 2, {1, 3}});
  // The first payload leaves the first lane after 2 + 1; from then on the second lane is the
  // bottleneck.
  EXPECT_NEAR(predict_makespan(costs, two, Order::kFcfs, NormBarrier::kNone, 0), 3 + 8 * 3 + 8,
              1e-9);
  // The whole backward, then the last payload's first lane, then the second lane for all payloads.
  EXPECT_NEAR(predict_makespan(costs, two, Order::kBarrier, NormBarrier::kNone, 0),
              8 * 2 + 1 + 8 * 3 + 8, 1e-9);
  // L - (B - (o + u)) / s = 8 - (16 - 4) / 3; no lane belongs to the device.
  EXPECT_EQ(transition_layer(costs, two), 4);
  EXPECT_EQ(lower_bound(costs), 24);
}

TEST_F(CostModelTest, WithoutAGateNothingGathersAndNoNormIsWaitedFor) {
  const auto costs = layers(13, 0.5, 0.3);
  EXPECT_EQ(predict_makespan(costs, {}, Order::kEdf, NormBarrier::kExact, 0),
            predict_makespan(costs, {}, Order::kEdf, NormBarrier::kNone, 0));
}

TEST_F(CostModelTest, RejectsLayersThatDifferInTheirLanes) {
  std::vector<LayerCost> costs(3, {1, 1, {1, 1, 1, 1}});
  costs[2].lanes.pop_back();
  const char* const text = "layer 2 has times for 3 lanes, expected 4, the number for layer 0";
  EXPECT_THAT([&] { predict_makespan(costs, kFourLanes, Order::kEdf, NormBarrier::kNone, 0); },
              ThrowsMessage<InvalidArgument>(HasSubstr(text)));
  EXPECT_THAT([&] { transition_layer(costs, kFourLanes); },
              ThrowsMessage<InvalidArgument>(HasSubstr(text)));
  EXPECT_THAT([&] { lower_bound(costs); }, ThrowsMessage<InvalidArgument>(HasSubstr(text)));
}

}  // namespace
}  // namespace sluiceway::test
