// Waits that their caller interrupts (I9), and lanes that are given up (I10).
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <functional>
#include <future>
#include <stdexcept>
#include <thread>

#include "kernels/base/error.h"
#include "runtime/schedule/executor.h"
#include "tests/runtime/schedule/lanes_fixture.h"

namespace sluiceway::test {
namespace {

using std::chrono::milliseconds;
using testing::AllOf;
using testing::Each;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::ThrowsMessage;

struct CalledOff : std::runtime_error {
  using std::runtime_error::runtime_error;
};

// Lanes whose waits end when the test says so. Opens the latches of its tasks before it ends.
class CalledOffTest : public testing::Test {
 protected:
  CalledOffTest() : f(2) {
    Executor::Config config = config_of(four_lanes(), kFourLanes, f.streams, 2);
    config.check_interrupt = [this] {
      ++checks;
      if (std::this_thread::get_id() == test && on_check) on_check();
      if (call_off) throw CalledOff("ctrl-c");
    };
    f.executor.emplace(std::move(config));
  }
  ~CalledOffTest() override { latch.open(); }

  void expect_called_off(const std::function<void()>& wait) {
    call_off = true;
    EXPECT_THROW(wait(), CalledOff);
    call_off = false;
  }
  void block_lane(LaneId lane) {
    f.executor->submit(f.blocked_payload(1, lane, latch));
    latch.wait_for_arrival();
  }

  Latch latch;
  std::atomic<int> checks = 0;
  std::atomic<bool> call_off = false;
  const std::thread::id test = std::this_thread::get_id();
  std::function<void()> on_check;
  LanesFixture f;  // Destroyed first: its tasks use the others.
};

// I9
TEST_F(CalledOffTest, AWaitEndsWithWhatTheCheckThrowsAndCanBeBegunAgain) {
  block_lane(kHost);
  expect_called_off([&] { f.executor->wait(1); });
  expect_called_off([&] { f.executor->drain(); });
  EXPECT_TRUE(f.executor->busy(1));
  latch.open();
  f.executor->wait(1);
  EXPECT_THAT(f.log.lanes_of(1), ElementsAre(kD2h, kHost, kH2d, kApply));
}

TEST_F(CalledOffTest, TheCheckIsNotAskedWhereNothingIsWaitedFor) {
  f.executor->wait(0);
  f.executor->drain();
  EXPECT_EQ(checks, 0);
}

TEST_F(CalledOffTest, AWaitThatIsCheckedEndsAsSoonAsItsPayloadDoes) {
  auto fastest = milliseconds::max();
  for (int i = 0; i < 5; ++i) {
    Latch closed;
    f.executor->submit(f.blocked_payload(0, kHost, closed));
    std::chrono::steady_clock::time_point opened, came_back;
    checks = 0;
    std::thread waiting([&] {
      f.executor->wait(0);
      came_back = std::chrono::steady_clock::now();
    });
    while (checks < 1) std::this_thread::sleep_for(milliseconds(1));
    opened = std::chrono::steady_clock::now();
    closed.open();
    waiting.join();
    fastest = std::min(fastest, std::chrono::duration_cast<milliseconds>(came_back - opened));
  }
  EXPECT_LT(fastest, milliseconds(25));  // The next check is up to 50 ms away.
}

// I9
TEST_F(CalledOffTest, ARecallThatIsCalledOffLeavesWhatRunsToGoOn) {
  Payload p = f.blocked_payload(0, kD2h, latch);
  p.hold_before = kHost;
  f.executor->submit(std::move(p));
  latch.wait_for_arrival();
  expect_called_off([&] { f.executor->recall(0); });
  f.executor->release();
  latch.open();
  f.executor->wait(0);
  EXPECT_THAT(f.log.lanes_of(0), ElementsAre(kD2h, kHost, kH2d, kApply));
}

// I9
TEST_F(CalledOffTest, ARecallThatIsCalledOffPutsBackWhatItStopped) {
  Payload running = f.blocked_payload(0, kD2h, latch);
  running.hold_before = kHost;
  f.executor->submit(std::move(running));
  latch.wait_for_arrival();
  f.executor->submit(f.payload(0, kHost));  // Ready, queued after the running one.
  f.executor->submit(f.payload(0, kD2h));   // Held at once.
  expect_called_off([&] { f.executor->recall(0); });
  f.executor->release();
  latch.open();
  f.executor->wait(0);
  EXPECT_EQ(f.log.layers_in(kApply).size(), 3U);
}

// I4, I9
TEST_F(CalledOffTest, ARecallAfterOneThatWasCalledOffTakesEverythingOut) {
  Payload p = f.blocked_payload(0, kD2h, latch);
  p.hold_before = kHost;
  f.executor->submit(std::move(p));
  latch.wait_for_arrival();
  f.executor->submit(f.payload(0, kHost));
  expect_called_off([&] { f.executor->recall(0); });
  latch.open();
  EXPECT_TRUE(f.executor->recall(0));
  EXPECT_FALSE(f.executor->busy(0));
  f.executor->release();
  f.executor->drain();
  EXPECT_THAT(f.log.lanes_of(0), Each(kD2h));  // The second may have begun before it was recalled.
}

// I4, I9
TEST_F(CalledOffTest, ARecallOfTheSameKeyByAnotherThreadTakesOutWhatWasPutBack) {
  Payload p = f.blocked_payload(0, kD2h, latch);
  p.hold_before = kHost;
  f.executor->submit(std::move(p));
  latch.wait_for_arrival();
  std::thread other;
  on_check = [&] {  // During the first recall, which is then interrupted.
    on_check = nullptr;
    other = std::thread([&] { EXPECT_TRUE(f.executor->recall(0)); });
    std::this_thread::sleep_for(milliseconds(20));
    throw CalledOff("ctrl-c");
  };
  EXPECT_THROW(f.executor->recall(0), CalledOff);
  latch.open();
  other.join();
  EXPECT_FALSE(f.executor->busy(0));
}

// ---- Lanes that are given up
// ---------------------------------------------------------------------

constexpr milliseconds kPatience(150);

class GivenUpTest : public CalledOffTest {};

// I10
TEST_F(GivenUpTest, AStuckLaneFailsTheExecutorWithLaneAndPayloadNamed) {
  block_lane(kHost);
  f.executor->submit(f.payload(0));
  f.executor->give_up_after(kPatience);
  const auto stuck = ThrowsMessage<Timeout>(
      AllOf(HasSubstr("executor: lane host, payload layer1: no hop finished for 0."),
            HasSubstr("call synchronize() first")));
  EXPECT_THAT([&] { f.executor->wait(1); }, stuck);
  EXPECT_THAT([&] { f.executor->drain(); }, stuck);
  EXPECT_THAT([&] { f.executor->recall(0); }, stuck);
  EXPECT_THAT([&] { f.executor->submit(f.payload(0)); }, stuck);
  EXPECT_FALSE(f.executor->idle());
}

// I10
TEST_F(GivenUpTest, NoStreamGetsAnythingAfterwards) {
  block_lane(kHost);
  f.executor->give_up_after(kPatience);
  EXPECT_THROW(f.executor->wait(1), Timeout);
  latch.open();
  while (!f.executor->idle()) std::this_thread::sleep_for(milliseconds(1));
  EXPECT_THAT(f.log.lanes_of(1), ElementsAre(kD2h, kHost));
}

// I10
TEST_F(GivenUpTest, ARecallOfWhatIsStuckEndsToo) {
  Payload p = f.blocked_payload(0, kD2h, latch);
  p.hold_before = kHost;
  f.executor->submit(std::move(p));
  latch.wait_for_arrival();
  f.executor->give_up_after(kPatience);
  EXPECT_THAT([&] { f.executor->recall(0); },
              ThrowsMessage<Timeout>(HasSubstr("lane d2h, payload layer0")));
}

// I10
TEST_F(GivenUpTest, AHopThatNobodyEverEndsIsNamed) {
  std::promise<HopDone> kept;  // The lane's thread passes it to this one.
  Payload p;
  p.name = "read";
  Hop hop;
  hop.lane = kH2d;
  hop.start = [&kept](StreamRef, const HopDone& done) { kept.set_value(done); };
  p.hops.push_back(std::move(hop));
  f.executor->submit(std::move(p));
  f.executor->give_up_after(kPatience);
  EXPECT_THAT([&] { f.executor->wait(0); },
              ThrowsMessage<Timeout>(HasSubstr("lane h2d, payload read")));
  kept.get_future().get()();
  EXPECT_TRUE(f.executor->idle());
}

// I6, I10
TEST_F(GivenUpTest, AnEarlierErrorOfAnotherLaneIsKept) {
  block_lane(kHost);
  Payload broken = f.payload(0);
  broken.hops[kD2h].run = [](StreamRef) { throw InvalidArgument("broke"); };
  f.executor->submit(std::move(broken));
  f.executor->give_up_after(kPatience);
  EXPECT_THAT([&] { f.executor->wait(0); },
              ThrowsMessage<InvalidArgument>(HasSubstr("lane d2h, payload layer0: broke")));
  EXPECT_FALSE(f.executor->idle());
}

TEST_F(GivenUpTest, LanesThatFinishHopsAreWaitedForHoweverManyThereAre) {
  for (int i = 0; i < 8; ++i) {
    Payload p = f.payload(0);
    p.hops[kHost].run = [](StreamRef) { std::this_thread::sleep_for(kPatience / 2); };
    f.executor->submit(std::move(p));
  }
  f.executor->give_up_after(kPatience);
  f.executor->wait(0);
  EXPECT_EQ(f.log.layers_in(kApply).size(), 8U);
}

TEST_F(GivenUpTest, ALaneWhoseHopsTakeLongIsGivenTheTimeTheyTook) {
  const auto slow_step = [&] {
    Payload p = f.payload(0);
    p.hops[kHost].run = [](StreamRef) { std::this_thread::sleep_for(3 * kPatience); };
    f.executor->submit(std::move(p));
    f.executor->wait(0);
  };
  slow_step();
  f.executor->give_up_after(kPatience);
  slow_step();
  EXPECT_EQ(f.log.layers_in(kApply).size(), 2U);
}

TEST_F(GivenUpTest, TimeInWhichNoWaitCouldLookHardlyCounts) {
  constexpr milliseconds kLimit(400);
  block_lane(kHost);
  f.executor->give_up_after(kLimit);
  int looks = 0;
  on_check = [&] {  // The process is suspended, and looks twice before its lane goes on.
    if (++looks == 1) std::this_thread::sleep_for(2 * kLimit);
    if (looks == 3) latch.open();
  };
  f.executor->wait(1);
  EXPECT_THAT(f.log.lanes_of(1), ElementsAre(kD2h, kHost, kH2d, kApply));
}

// I10
TEST_F(GivenUpTest, AStuckLaneIsGivenUpHoweverLateItsWaitLooks) {
  block_lane(kHost);
  f.executor->give_up_after(kPatience);
  on_check = [] { std::this_thread::sleep_for(kPatience); };
  EXPECT_THROW(f.executor->wait(1), Timeout);
}

TEST_F(GivenUpTest, PatienceThatIsTakenBackGivesNothingUp) {
  block_lane(kHost);
  f.executor->give_up_after(kPatience);
  f.executor->give_up_after({});
  std::thread opener([&] {
    std::this_thread::sleep_for(2 * kPatience);
    latch.open();
  });
  f.executor->wait(1);
  opener.join();
}

}  // namespace
}  // namespace sluiceway::test
