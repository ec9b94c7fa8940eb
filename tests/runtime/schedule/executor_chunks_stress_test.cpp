// Random chunks of several keys through lanes of different depth, with hops that end elsewhere:
//   a chunk is in one lane at a time, its hops run once and in lane order, none after recall(),
//   a lane has no more hops in flight than its depth,
//   no wait is forgotten (a lost wake-up ends the test by its time limit).
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <array>
#include <atomic>
#include <chrono>
#include <memory>
#include <thread>

#include "runtime/schedule/executor.h"
#include "tests/runtime/schedule/lanes_fixture.h"
#include "tests/support/rng.h"

namespace sluiceway::test {
namespace {

constexpr int kKeys = 5;
constexpr std::array<int, 3> kDepth = {3, 1, 4};

// Requests of a disk, completed in any order by a thread of its own.
class Disk {
 public:
  Disk() : thread_([this] { run(); }) {}
  ~Disk() {
    {
      const std::lock_guard lock(mutex_);
      closing_ = true;
      changed_.notify_all();
    }
    thread_.join();
  }
  void accept(HopDone done) {
    const std::lock_guard lock(mutex_);
    requests_.push_back(std::move(done));
    changed_.notify_all();
  }

 private:
  void run() {
    Rng rng(5);
    std::unique_lock lock(mutex_);
    for (;;) {
      changed_.wait(lock, [&] { return closing_ || !requests_.empty(); });
      if (requests_.empty()) return;
      const auto at = requests_.begin() + rng.below(static_cast<int>(requests_.size()));
      const HopDone done = std::move(*at);
      requests_.erase(at);
      lock.unlock();
      if (rng.below(4) == 0) std::this_thread::sleep_for(std::chrono::microseconds(50));
      done();
      lock.lock();
    }
  }

  std::mutex mutex_;
  std::condition_variable changed_;
  std::vector<HopDone> requests_;
  bool closing_ = false;
  std::thread thread_;
};

// One chunk's life, checked by its own hops.
struct Life {
  std::atomic<LaneId> next_lane = 0;
  std::atomic<bool> in_hop = false;
  std::atomic<bool> recalled = false;
};

class ExecutorChunksStressTest : public testing::TestWithParam<std::tuple<Order, StreamKind>> {
 protected:
  int roll(int sides) { return static_cast<int>(rng.below(sides)); }

  void begin(Life& life, LaneId lane) {
    const auto at = static_cast<std::size_t>(lane);
    if (++in_flight[at] > kDepth[at]) ++violations;
    if (life.in_hop.exchange(true)) ++violations;
    if (life.next_lane.exchange(lane + 1) != lane) ++violations;
    if (life.recalled) ++violations;
    ++hops;
  }
  void end(Life& life, LaneId lane) {
    life.in_hop = false;
    --in_flight[static_cast<std::size_t>(lane)];
  }

  Hop request(LaneId lane, const std::shared_ptr<Life>& life) {
    Hop hop{.lane = lane};
    hop.start = [this, life, lane](StreamRef, const HopDone& done) {
      begin(*life, lane);
      disk.accept(HopDone([this, life, lane, done](const std::exception_ptr&) {
        end(*life, lane);
        done();
      }));
    };
    return hop;
  }

  // Read, processed, written; held before one of the last two.
  Payload chunk(int key, const std::shared_ptr<Life>& life) {
    Payload p;
    p.key = key;
    p.deadline = static_cast<std::uint64_t>(roll(100));
    p.name = "chunk";
    p.hops.push_back(request(0, life));
    p.hops.push_back({1, [this, life](StreamRef) {
                        begin(*life, 1);
                        end(*life, 1);
                      }});
    p.hops.push_back(request(2, life));
    p.hold_before = static_cast<std::size_t>(1 + roll(2));
    return p;
  }

  Rng rng{73};
  std::array<std::atomic<int>, kDepth.size()> in_flight{};
  std::atomic<int> violations = 0;
  std::atomic<int> hops = 0;
  Disk disk;
};

// I1, I2, I4, I7 and I8
TEST_P(ExecutorChunksStressTest, InvariantsHoldOverManySteps) {
  LanesFixture f(kKeys, std::get<0>(GetParam()), std::get<1>(GetParam()),
                 {{.name = "read", .depth = kDepth[0]},
                  {.name = "host", .depth = kDepth[1]},
                  {.name = "write", .depth = kDepth[2]}},
                 {.gather_before = 1});
  for (int step = 0; step < 30; ++step) {
    std::vector<std::shared_ptr<Life>> lives;
    for (int key = kKeys - 1; key >= 0; --key) {
      const std::size_t first = lives.size();
      for (int i = 1 + roll(9); i > 0; --i) {
        f.executor->submit(chunk(key, lives.emplace_back(std::make_shared<Life>())));
      }
      if (roll(5) > 0) continue;
      EXPECT_TRUE(f.executor->recall(key));
      for (std::size_t i = first; i < lives.size(); ++i) lives[i]->recalled = true;
    }
    f.executor->release();
    for (int key = 0; key < kKeys; ++key) f.executor->wait(key);
    for (const auto& life : lives) EXPECT_TRUE(life->recalled || life->next_lane == 3);
  }
  f.executor->drain();
  EXPECT_EQ(violations.load(), 0);
  EXPECT_GT(hops.load(), 30 * kKeys * 3);
}

INSTANTIATE_TEST_SUITE_P(
    Executor, ExecutorChunksStressTest,
    testing::Combine(testing::Values(Order::kBarrier, Order::kFcfs, Order::kPaper, Order::kEdf),
                     testing::Values(StreamKind::kWorkers, StreamKind::kInline)),
    [](const auto& param) {
      const bool workers = std::get<1>(param.param) == StreamKind::kWorkers;
      return std::string(to_string(std::get<0>(param.param))) + (workers ? "_workers" : "_inline");
    });

}  // namespace
}  // namespace sluiceway::test
