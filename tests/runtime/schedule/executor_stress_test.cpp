// Random payloads, holds, recalls, failures and slow tasks against the executor's invariants:
//   a payload is in one lane at a time, its tasks run once and in lane order,
//   a lane runs one payload at a time,
//   no task at or behind a hold runs before release(), none after recall(),
//   no wait is forgotten (a lost wake-up ends the test by its time limit).
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <memory>
#include <thread>

#include "kernels/base/error.h"
#include "runtime/schedule/executor.h"
#include "tests/runtime/schedule/lanes_fixture.h"
#include "tests/support/rng.h"

namespace sluiceway::test {
namespace {

constexpr int kLayers = 23;
constexpr LaneId kLaneCount = kApply + 1;

// One payload's life, checked by its own tasks.
struct Life {
  std::atomic<LaneId> next_lane = 0;
  std::atomic<bool> in_task = false;
  std::atomic<bool> recalled = false;
  LaneId hold = kLaneCount;
  LaneId last_lane = 0;  // One after its last lane with a task.
};

class Ledger {
 public:
  void enter(Life& life, LaneId lane) {
    if (life.in_task.exchange(true)) ++violations;
    if (lane_taken_[static_cast<std::size_t>(lane)].exchange(true)) ++violations;
    if (lane < life.next_lane.exchange(lane + 1)) ++violations;
    if (life.recalled) ++violations;
    if (lane >= life.hold && !released) ++violations;
    ++tasks;
  }
  void leave(Life& life, LaneId lane) {
    lane_taken_[static_cast<std::size_t>(lane)] = false;
    life.in_task = false;
  }

  std::atomic<int> violations = 0;
  std::atomic<int> tasks = 0;
  std::atomic<bool> released = false;  // Whether the step in the lanes was released.

 private:
  std::array<std::atomic<bool>, kLaneCount> lane_taken_{};
};

class ExecutorStressTest : public testing::TestWithParam<std::tuple<Order, StreamKind>> {
 protected:
  int roll(int sides) { return static_cast<int>(rng.below(sides)); }

  Payload random_payload(int layer, const std::shared_ptr<Life>& life) {
    Payload p;
    p.key = layer;
    p.deadline = static_cast<std::uint64_t>(layer);
    p.name = "layer" + std::to_string(layer);
    if (roll(2) == 0) {
      life->hold = roll(kLaneCount);
      p.hold_before = 0;
    }
    for (LaneId lane = 0; lane < kLaneCount; ++lane) {
      if (roll(8) == 0) continue;
      life->last_lane = lane + 1;
      const int sleep_us = roll(4) == 0 ? roll(200) : 0;
      if (lane < life->hold && p.hold_before) ++*p.hold_before;
      p.hops.push_back({lane, [this, life, lane, sleep_us](StreamRef) {
                          ledger.enter(*life, lane);
                          if (sleep_us > 0) {
                            std::this_thread::sleep_for(std::chrono::microseconds(sleep_us));
                          }
                          ledger.leave(*life, lane);
                        }});
    }
    return p;
  }

  Rng rng{71};
  Ledger ledger;
};

// I1 to I4 and I7
TEST_P(ExecutorStressTest, InvariantsHoldOverManySteps) {
  LanesFixture f(kLayers, std::get<0>(GetParam()), std::get<1>(GetParam()));
  f.executor->set_transition(kLayers / 2);
  for (int step = 0; step < 40; ++step) {
    ledger.released = false;
    std::vector<std::shared_ptr<Life>> lives(kLayers);
    for (int layer = kLayers - 1; layer >= 0; --layer) {
      if (roll(10) == 0) continue;  // A weight without a gradient.
      auto& life = lives[static_cast<std::size_t>(layer)] = std::make_shared<Life>();
      Payload p = random_payload(layer, life);
      const bool take_back = p.hold_before && roll(4) == 0;
      f.executor->submit(std::move(p));
      if (take_back) {
        if (roll(2) == 0) std::this_thread::sleep_for(std::chrono::microseconds(roll(300)));
        EXPECT_TRUE(f.executor->recall(layer));
        life->recalled = true;
        if (roll(2) == 0) {
          life = std::make_shared<Life>();
          f.executor->submit(random_payload(layer, life));
        }
      }
    }
    ledger.released = true;
    f.executor->release();
    for (int layer = 0; layer < kLayers; ++layer) {
      f.executor->wait(layer);
      EXPECT_FALSE(f.executor->busy(layer));
      const auto& life = lives[static_cast<std::size_t>(layer)];
      if (life && !life->recalled) {
        EXPECT_EQ(life->next_lane.load(), life->last_lane)
            << "step " << step << ", layer " << layer;
      }
    }
  }
  f.executor->drain();
  EXPECT_EQ(ledger.violations.load(), 0);
  EXPECT_GT(ledger.tasks.load(), 40 * kLayers);
}

// I7: Threads that each own some layers submit, recall and wait; one more releases all the time.
TEST_P(ExecutorStressTest, ManyThreadsMayCallAtOnce) {
  LanesFixture f(kLayers, std::get<0>(GetParam()), std::get<1>(GetParam()));
  ledger.released = true;  // Payloads of several steps are in the lanes, so holds are not checked.
  std::atomic<int> applied = 0;
  std::atomic<int> running = 3;
  std::vector<std::thread> owners;
  int expected = 0;
  for (int owner = 0; owner < 3; ++owner) {
    owners.emplace_back([&, owner, own = Rng(rng.bits())]() mutable {
      for (int turn = 0; turn < 60; ++turn) {
        for (int layer = owner; layer < kLayers; layer += 3) {
          Payload p = f.payload(layer);
          p.hops[kApply].run = [&applied](StreamRef) { ++applied; };
          if (own.below(2) == 0) p.hold_before = own.bits() % kLaneCount;
          f.executor->submit(std::move(p));
        }
        for (int layer = owner; layer < kLayers; layer += 3) {
          while (f.executor->busy(layer)) {  // Held ones wait for the releasing thread.
            f.executor->wait(layer);
            std::this_thread::yield();
          }
        }
      }
      --running;
    });
    expected += 60 * ((kLayers - owner + 2) / 3);
  }
  while (running > 0) {
    f.executor->release();
    std::this_thread::sleep_for(std::chrono::microseconds(50));
  }
  for (std::thread& owner : owners) owner.join();
  EXPECT_EQ(applied.load(), expected);
  for (const LaneId lane : {kD2h, kHost, kH2d}) {
    EXPECT_EQ(f.log.layers_in(lane).size(), static_cast<std::size_t>(expected));
  }
}

// I5, I6
TEST_P(ExecutorStressTest, AFailureAtAnyMomentSurfacesAndLeavesNothingBehind) {
  for (int round = 0; round < 60; ++round) {
    LanesFixture f(kLayers, std::get<0>(GetParam()), std::get<1>(GetParam()));
    const int bad_layer = roll(kLayers);
    const LaneId bad_lane = roll(kLaneCount);
    const std::string text = "executor: lane " +
                             four_lanes()[static_cast<std::size_t>(bad_lane)].name +
                             ", payload layer" + std::to_string(bad_layer) + ": broken";
    std::vector<std::shared_ptr<Life>> lives;
    int calls_that_threw = 0;
    const auto call = [&](const auto& action) {
      try {
        action();
      } catch (const Error& e) {
        EXPECT_EQ(e.what(), text);
        ++calls_that_threw;
      }
    };
    ledger.released = true;
    for (int layer = kLayers - 1; layer >= 0; --layer) {
      lives.push_back(std::make_shared<Life>());
      Payload p = random_payload(layer, lives.back());
      if (layer == bad_layer) {
        set_hop(p, bad_lane, [](StreamRef) { throw Error("broken"); });
      }
      call([&] { f.executor->submit(std::move(p)); });
    }
    call([&] { f.executor->release(); });
    for (int layer = 0; layer < kLayers; ++layer) call([&] { f.executor->wait(layer); });
    call([&] { f.executor->drain(); });
    EXPECT_GE(calls_that_threw, 1);
    const int tasks = ledger.tasks;
    std::this_thread::sleep_for(std::chrono::microseconds(roll(500)));
    EXPECT_EQ(ledger.tasks, tasks);  // Nothing runs after the error has surfaced.
    for (const auto& life : lives) EXPECT_EQ(life.use_count(), 1);
  }
  EXPECT_EQ(ledger.violations.load(), 0);
}

// I5
TEST_P(ExecutorStressTest, DestructionAtAnyMomentFinishesOrDropsEveryPayload) {
  for (int round = 0; round < 60; ++round) {
    std::vector<std::shared_ptr<Life>> lives;
    {
      LanesFixture f(kLayers, std::get<0>(GetParam()), std::get<1>(GetParam()));
      ledger.released = false;
      const int count = roll(kLayers + 1);
      for (int layer = 0; layer < count; ++layer) {
        lives.push_back(std::make_shared<Life>());
        f.executor->submit(random_payload(layer, lives.back()));
      }
      if (roll(2) == 0) {
        ledger.released = true;
        f.executor->release();
      }
      std::this_thread::sleep_for(std::chrono::microseconds(roll(300)));
    }
    for (const auto& life : lives) {
      EXPECT_EQ(life.use_count(), 1);
      EXPECT_TRUE(!ledger.released || life->next_lane == life->last_lane);
    }
  }
  EXPECT_EQ(ledger.violations.load(), 0);
}

INSTANTIATE_TEST_SUITE_P(
    Executor, ExecutorStressTest,
    testing::Combine(testing::Values(Order::kBarrier, Order::kFcfs, Order::kPaper, Order::kEdf),
                     testing::Values(StreamKind::kWorkers, StreamKind::kInline)),
    [](const auto& param) {
      const bool workers = std::get<1>(param.param) == StreamKind::kWorkers;
      return std::string(to_string(std::get<0>(param.param))) + (workers ? "_workers" : "_inline");
    });

}  // namespace
}  // namespace sluiceway::test
