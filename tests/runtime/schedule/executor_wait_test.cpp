// The promises of wait(), acquire() and drain(), and the times that they report.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>
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
using testing::ThrowsMessage;

// I8
TEST(ExecutorWaitTest, WaitReturnsWhenTheLayerIsAppliedWhileOthersAreNot) {
  LanesFixture f(2);
  Latch latch;
  f.executor->submit(f.blocked_payload(1, kHost, latch));
  latch.wait_for_arrival();
  f.executor->submit(f.payload(0));
  std::thread opener([&] {
    while (f.log.entries().size() < 2) std::this_thread::sleep_for(milliseconds(1));
    latch.open();
  });
  f.executor->wait(1);
  opener.join();
  EXPECT_EQ(f.log.lanes_of(1).size(), 4U);
  f.executor->drain();
}

// I8
TEST(ExecutorWaitTest, WaitDoesNotWaitForWhatOnlyReleaseLetsGo) {
  LanesFixture f(2);
  f.executor->submit(f.payload(0, kApply));
  EXPECT_EQ(f.executor->wait(0), 0.0);
  EXPECT_TRUE(f.executor->busy(0));
  f.executor->release();
  f.executor->wait(0);
  EXPECT_FALSE(f.executor->busy(0));
}

TEST(ExecutorWaitTest, DrainRefusesWhileAPayloadIsHeld) {
  LanesFixture f(2);
  f.executor->submit(f.payload(1, kApply));
  EXPECT_THAT([&] { f.executor->drain(); },
              ThrowsMessage<InvalidArgument>(AllOf(HasSubstr("payload layer1 of key 1 is held"),
                                                   HasSubstr("release() or recall(1) first"))));
  f.executor->release();
  f.executor->drain();
  EXPECT_EQ(f.log.lanes_of(1).size(), 4U);
}

TEST(ExecutorWaitTest, StallIsTheTimeBlockedWhileTheApplyLaneWasIdle) {
  LanesFixture f(2);
  Payload p = f.payload(0);
  p.hops[kHost].run = [](StreamRef) { std::this_thread::sleep_for(milliseconds(120)); };
  p.hops[kApply].run = [](StreamRef) { std::this_thread::sleep_for(milliseconds(60)); };
  f.executor->submit(std::move(p));
  const auto begin = std::chrono::steady_clock::now();
  const double stall_s = f.executor->wait(0);
  const double blocked_s =
      std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
  EXPECT_GE(stall_s, 0.060);
  EXPECT_LE(stall_s, blocked_s - 0.055);
  EXPECT_EQ(f.executor->wait(0), 0.0);
}

TEST(ExecutorWaitTest, TimesAndUseAreThoseOfTheTasks) {
  LanesFixture f(2);
  Payload p = f.payload(1);
  p.hops[kD2h].run = [](StreamRef) { std::this_thread::sleep_for(milliseconds(100)); };
  drop_hop(p, kHost);
  f.executor->submit(std::move(p));
  f.executor->submit(f.payload(0));
  f.executor->drain();
  EXPECT_GE(f.executor->last_seconds(1)[kD2h], 0.100);
  EXPECT_LT(f.executor->last_seconds(0)[kD2h], 0.100);
  EXPECT_EQ(f.executor->last_seconds(1)[kHost], 0.0);
  const LaneUse use = f.executor->take_use();
  EXPECT_GE(use.seconds[kD2h], 0.100);
  EXPECT_THAT(use.payloads, ElementsAre(2, 1, 2, 2));
  EXPECT_THAT(f.executor->take_use().payloads, ElementsAre(0, 0, 0, 0));
}

TEST(ExecutorWaitTest, SecondsOfAKeyAreTheSumOverItsPayloadsOfAStep) {
  LanesFixture f(1);
  const auto step = [&](int payloads) {
    for (int i = 0; i < payloads; ++i) {
      Payload p = f.payload(0, kHost);
      p.hops[kD2h].run = [](StreamRef) { std::this_thread::sleep_for(milliseconds(20)); };
      f.executor->submit(std::move(p));
    }
    f.executor->release();
    f.executor->wait(0);
    return f.executor->last_seconds(0)[kD2h];
  };
  const double three = step(3), one = step(1);
  EXPECT_GE(three, 0.060);
  EXPECT_GE(one, 0.020);
  EXPECT_LT(one, three);
}

// I8
TEST(ExecutorWaitTest, WaitIsForEveryPayloadOfTheKey) {
  LanesFixture f(2);
  Latch latch;
  f.executor->submit(f.payload(0));
  f.executor->submit(f.blocked_payload(0, kHost, latch));
  f.executor->submit(f.payload(0));
  latch.wait_for_arrival();
  std::thread opener([&] {
    std::this_thread::sleep_for(milliseconds(20));
    latch.open();
  });
  f.executor->wait(0);
  EXPECT_EQ(f.log.layers_in(kApply).size(), 3U);
  EXPECT_FALSE(f.executor->busy(0));
  opener.join();
}

// Hops of these lanes run on host threads, so acquire() must wait for their end.
//
// I8
TEST(ExecutorAcquireTest, WhatEndsOnTheHostIsWaitedForToItsEnd) {
  LanesFixture f(2);
  Latch latch;
  Stream reader = Stream::host({.name = "reader"});
  EXPECT_FALSE(f.executor->moves(0));
  f.executor->acquire(0, reader);
  f.executor->submit(f.payload(0));
  f.executor->submit(f.blocked_payload(0, kApply, latch));
  EXPECT_TRUE(f.executor->moves(0));
  EXPECT_FALSE(f.executor->moves(1));
  f.executor->acquire(1, reader);
  latch.wait_for_arrival();
  std::thread opener([&] {
    std::this_thread::sleep_for(milliseconds(20));
    latch.open();
  });
  f.executor->acquire(0, reader);
  EXPECT_EQ(f.log.layers_in(kApply).size(), 2U);
  EXPECT_FALSE(f.executor->moves(0));
  opener.join();
}

// I8
TEST(ExecutorAcquireTest, DoesNotWaitForWhatOnlyReleaseLetsGo) {
  LanesFixture f(1);
  Stream reader = Stream::host({.name = "reader"});
  f.executor->submit(f.payload(0, kHost));
  EXPECT_FALSE(f.executor->moves(0));
  f.executor->acquire(0, reader);
  f.executor->submit(f.payload(0));
  f.executor->acquire(0, reader);
  EXPECT_TRUE(f.executor->busy(0));  // The held one.
  f.executor->release();
  f.executor->drain();
}

// I8
TEST(ExecutorAcquireTest, UnderTheBarrierItIsForAllKeys) {
  LanesFixture f(2, Order::kBarrier);
  Latch latch;
  Stream reader = Stream::host({.name = "reader"});
  f.executor->submit(f.payload(0));
  f.executor->submit(f.blocked_payload(1, kApply, latch));
  f.executor->release();
  latch.wait_for_arrival();
  EXPECT_TRUE(f.executor->moves(0));
  std::thread opener([&] {
    std::this_thread::sleep_for(milliseconds(20));
    latch.open();
  });
  f.executor->acquire(0, reader);
  EXPECT_FALSE(f.executor->busy(1));
  opener.join();
}

// I8
TEST(ExecutorAcquireTest, EndsAfterRecallAndThrowsAfterAFailure) {
  LanesFixture f(2);
  Stream reader = Stream::host({.name = "reader"});
  Latch latch;
  Payload p = f.blocked_payload(0, kD2h, latch);
  p.hold_before = kApply;
  f.executor->submit(std::move(p));
  f.executor->release();
  latch.wait_for_arrival();
  std::thread opener([&] {
    std::this_thread::sleep_for(milliseconds(10));
    latch.open();
  });
  EXPECT_TRUE(f.executor->recall(0));
  f.executor->acquire(0, reader);
  opener.join();

  p = f.payload(1);
  p.hops[kHost].run = [](StreamRef) {
    std::this_thread::sleep_for(milliseconds(10));
    throw Error("broken");
  };
  f.executor->submit(std::move(p));
  EXPECT_THAT([&] { f.executor->acquire(1, reader); },
              ThrowsMessage<Error>(HasSubstr("payload layer1: broken")));
}

}  // namespace
}  // namespace sluiceway::test
