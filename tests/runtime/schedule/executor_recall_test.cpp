// The promises of recall(): a recalled payload never runs again, and one that went too far is
// rejected.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <memory>
#include <thread>

#include "kernels/base/error.h"
#include "runtime/schedule/executor.h"
#include "tests/runtime/schedule/lanes_fixture.h"

namespace sluiceway::test {
namespace {

using std::chrono::milliseconds;
using testing::AllOf;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;
using testing::ThrowsMessage;

// I4
TEST(ExecutorRecallTest, RecalledPayloadNeverPassesItsHold) {
  LanesFixture f(2);
  f.executor->submit(f.payload(1, kHost));
  f.executor->submit(f.payload(0, kHost));
  EXPECT_TRUE(f.executor->recall(1));
  EXPECT_FALSE(f.executor->busy(1));
  EXPECT_FALSE(f.executor->recall(1));
  f.executor->release();
  f.executor->drain();
  EXPECT_THAT(f.log.layers_in(kHost), ElementsAre(0));
}

// I4
TEST(ExecutorRecallTest, RecallWaitsForTheTaskThatRuns) {
  LanesFixture f(1);
  Latch latch;
  Payload p = f.blocked_payload(0, kD2h, latch);
  p.hold_before = kHost;
  f.executor->submit(std::move(p));
  latch.wait_for_arrival();
  std::atomic<bool> opened = false;
  std::thread opener([&] {
    std::this_thread::sleep_for(milliseconds(50));
    opened = true;
    latch.open();
  });
  EXPECT_TRUE(f.executor->recall(0));
  EXPECT_TRUE(opened);
  opener.join();
  EXPECT_THAT(f.log.lanes_of(0), ElementsAre(kD2h));
  f.executor->submit(f.payload(0));
  f.executor->drain();
  EXPECT_EQ(f.log.entries().size(), 5U);
}

// I4
TEST(ExecutorRecallTest, RecallTakesAPayloadOutOfAWaitingLane) {
  LanesFixture f(2);
  Latch latch;
  f.executor->submit(f.blocked_payload(1, kD2h, latch));
  latch.wait_for_arrival();
  f.executor->submit(f.payload(0, kApply));
  EXPECT_TRUE(f.executor->recall(0));
  latch.open();
  f.executor->release();
  f.executor->drain();
  EXPECT_THAT(f.log.lanes_of(0), IsEmpty());
}

// I5
TEST(ExecutorRecallTest, RecallFreesWhatTheTasksCapturedBeforeItReturns) {
  LanesFixture f(1);
  auto buffer = std::make_shared<int>(7);
  Payload p = f.payload(0, kHost);
  p.hops[kD2h].run = [buffer](StreamRef) {};
  p.hops[kApply].run = [buffer](StreamRef) {};
  f.executor->submit(std::move(p));
  f.executor->recall(0);
  EXPECT_EQ(buffer.use_count(), 1);
}

// I4
TEST(ExecutorRecallTest, RefusesWhatHasPassedItsHoldOrHasNone) {
  LanesFixture f(2);
  Latch host, d2h;
  Payload p = f.blocked_payload(1, kHost, host);
  p.hold_before = kHost;
  f.executor->submit(std::move(p));
  f.executor->release();
  host.wait_for_arrival();
  f.executor->submit(f.blocked_payload(0, kD2h, d2h));
  EXPECT_THAT([&] { f.executor->recall(0); },
              ThrowsMessage<InvalidArgument>(HasSubstr("before its hold (none)")));
  EXPECT_THAT([&] { f.executor->recall(1); },
              ThrowsMessage<InvalidArgument>(AllOf(HasSubstr("payload layer1 of key 1"),
                                                   HasSubstr("before its hold (host)"))));
  host.open();
  d2h.open();
  f.executor->drain();
  EXPECT_EQ(f.log.entries().size(), 8U);
}

// Recalls layer 0 while its d2h task runs and keeps layer 1 waiting at the barrier. Returns false
// if layer 0 had already passed its hold, which can happen on a busy machine.
bool recall_at_the_barrier() {
  LanesFixture f(2, Order::kBarrier);
  Latch latch;
  f.executor->submit(f.payload(1, kHost));
  Payload p = f.blocked_payload(0, kD2h, latch);
  p.hold_before = kHost;
  f.executor->submit(std::move(p));
  f.executor->release();
  latch.wait_for_arrival();
  std::thread opener([&] {
    std::this_thread::sleep_for(milliseconds(20));
    latch.open();
  });
  bool recalled = false;
  try {
    recalled = f.executor->recall(0);
  } catch (const InvalidArgument&) {
    recalled = false;
  }
  opener.join();
  f.executor->drain();  // Would wait for ever if the barrier stayed closed.
  EXPECT_EQ(f.log.lanes_of(1).size(), 4U);
  EXPECT_EQ(f.log.lanes_of(0).size(), recalled ? 1U : 4U);
  return recalled;
}

// I7
TEST(ExecutorRecallTest, RecallOpensTheBarrierForTheOthers) {
  bool recalled = false;
  for (int attempt = 0; attempt < 50 && !recalled; ++attempt) recalled = recall_at_the_barrier();
  EXPECT_TRUE(recalled);
}

}  // namespace
}  // namespace sluiceway::test
