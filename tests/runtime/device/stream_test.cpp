// What every kind of host stream promises: order, errors, waits, and what its end finishes.
#include "runtime/device/stream.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <array>
#include <atomic>
#include <chrono>
#include <future>
#include <numeric>
#include <stdexcept>
#include <thread>
#include <vector>

#include "runtime/trace/trace.h"

namespace sluiceway::test {
namespace {

using std::chrono::milliseconds;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::ThrowsMessage;

enum class Kind { kOwned, kBorrowed, kHost };

Stream make(Kind kind, std::string name = "stream") {
  if (kind == Kind::kOwned) return Stream::owned(DeviceId::host(), {std::move(name)});
  if (kind == Kind::kBorrowed) return Stream::borrowed(StreamRef::host());
  return Stream::host({std::move(name)});
}

void sleep_ms(int ms) { std::this_thread::sleep_for(milliseconds(ms)); }

std::string text_of(const std::exception_ptr& error) {
  if (error == nullptr) return "nothing thrown";
  try {
    std::rethrow_exception(error);
  } catch (const std::exception& thrown) {
    return thrown.what();
  } catch (int number) {
    return "int " + std::to_string(number);
  }
}

// What every kind promises.
class StreamTest : public testing::TestWithParam<Kind> {
 protected:
  Stream stream = make(GetParam());
};

std::string kind_name(const testing::TestParamInfo<Kind>& kind) {
  static constexpr std::array kNames = {"Owned", "Borrowed", "Host"};
  return kNames[static_cast<std::size_t>(kind.param)];
}

INSTANTIATE_TEST_SUITE_P(Kinds, StreamTest,
                         testing::Values(Kind::kOwned, Kind::kBorrowed, Kind::kHost), kind_name);

TEST_P(StreamTest, RunsTasksInOrder) {
  std::vector<int> order;
  for (int i = 0; i < 100; ++i) stream.enqueue([&order, i](StreamRef) { order.push_back(i); });
  stream.synchronize();
  std::vector<int> expected(100);
  std::iota(expected.begin(), expected.end(), 0);
  EXPECT_EQ(order, expected);
}

TEST_P(StreamTest, HandsTheHostDeviceToItsTasks) {
  StreamRef seen = StreamRef::cuda(7, nullptr);
  stream.enqueue([&](StreamRef ref) { seen = ref; });
  stream.synchronize();
  EXPECT_EQ(seen.native(), nullptr);
  EXPECT_TRUE(seen.is_host());
  EXPECT_TRUE(stream.device().is_host());
}

TEST_P(StreamTest, DoneRunsAfterItsTaskAndBeforeTheNextTask) {
  std::vector<std::string> order;
  for (const std::string name : {"a", "b"}) {
    stream.enqueue([&, name](StreamRef) { order.push_back("task " + name); },
                   [&, name](const Completion&) { order.push_back("done " + name); });
  }
  stream.synchronize();
  EXPECT_THAT(order, ElementsAre("task a", "done a", "task b", "done b"));
}

TEST_P(StreamTest, CompletionSaysWhenTheTaskRan) {
  const double before_us = now_us();
  Completion seen;
  stream.enqueue([](StreamRef) { sleep_ms(10); }, [&](const Completion& c) { seen = c; });
  stream.synchronize();
  EXPECT_GE(seen.begin_us, before_us);
  EXPECT_GE(seen.end_us - seen.begin_us, 10'000);
  EXPECT_LE(seen.end_us, now_us());
  EXPECT_EQ(seen.error, nullptr);
}

TEST_P(StreamTest, WhatTheTaskHoldsIsLetGoBeforeDone) {
  auto held = std::make_shared<int>(1);
  const std::weak_ptr<int> watch = held;
  bool let_go = false;
  stream.enqueue([held = std::move(held)](StreamRef) {},
                 [&](const Completion&) { let_go = watch.expired(); });
  stream.synchronize();
  EXPECT_TRUE(let_go);
}

TEST_P(StreamTest, ExceptionGoesToDoneAndLaterTasksStillRun) {
  std::string text;
  bool later = false;
  stream.enqueue([](StreamRef) { throw std::runtime_error("lane broke"); },
                 [&](const Completion& c) { text = text_of(c.error); });
  stream.enqueue([&](StreamRef) { later = true; });
  stream.synchronize();  // Must not rethrow: `done` has it.
  EXPECT_EQ(text, "lane broke");
  EXPECT_TRUE(later);
}

TEST_P(StreamTest, ExceptionWithoutDoneIsRethrownOnceBySynchronize) {
  stream.enqueue([](StreamRef) { throw std::runtime_error("first"); });
  stream.enqueue([](StreamRef) { throw std::runtime_error("second"); });
  EXPECT_THAT([&] { stream.synchronize(); }, ThrowsMessage<std::runtime_error>("first"));
  stream.synchronize();
}

TEST_P(StreamTest, ThrownIntsAndEmptyTasksAreErrorsToo) {
  std::vector<std::string> texts;
  const auto keep = [&](const Completion& c) { texts.push_back(text_of(c.error)); };
  stream.enqueue([](StreamRef) { throw 17; }, keep);
  stream.enqueue(Stream::Task(), keep);
  stream.synchronize();
  EXPECT_THAT(texts, ElementsAre("int 17", HasSubstr("bad_function_call")));
}

TEST_P(StreamTest, ErrorNobodyAsksForDiesWithTheStream) {
  stream.enqueue([](StreamRef) { throw std::runtime_error("unheard"); });
  stream = make(GetParam());
  stream.synchronize();
}

TEST_P(StreamTest, DestructorFinishesWhatWasEnqueued) {
  int finished = 0;
  Event last;
  {
    const Stream moved = [&] {
      Stream local = std::move(stream);
      for (int i = 0; i < 20; ++i) {
        local.enqueue([](StreamRef) { sleep_ms(1); }, [&](const Completion&) { ++finished; });
      }
      last = local.record();
      return local;
    }();
  }
  EXPECT_EQ(finished, 20);
  EXPECT_TRUE(last.happened());
  stream = make(GetParam());
}

TEST_P(StreamTest, MoveAssignmentFinishesTheOldWork) {
  std::atomic<bool> finished{false};
  stream.enqueue([&](StreamRef) {
    sleep_ms(20);
    finished = true;
  });
  stream = make(GetParam());
  EXPECT_TRUE(finished);
}

TEST_P(StreamTest, DoneMayEnqueueOnItsOwnStreamAndOnAnother) {
  Stream other = Stream::host({"other"});
  std::promise<void> both;
  std::atomic<int> ran{0};
  const auto count = [&](StreamRef) {
    if (++ran == 2) both.set_value();
  };
  stream.enqueue([](StreamRef) {},
                 [&](const Completion&) {
                   stream.enqueue(count);
                   other.enqueue(count);
                 });
  EXPECT_EQ(both.get_future().wait_for(std::chrono::seconds(30)), std::future_status::ready);
  stream.synchronize();
}

TEST_P(StreamTest, WaitHoldsLaterWorkUntilTheEventOfAnotherStream) {
  Stream other = Stream::host({"other"});
  bool written = false;
  bool seen = false;
  other.enqueue([&](StreamRef) {
    sleep_ms(20);
    written = true;
  });
  stream.wait(other.record());
  stream.enqueue([&](StreamRef) { seen = written; });
  stream.synchronize();
  EXPECT_TRUE(seen);
}

TEST_P(StreamTest, WaitForItsOwnPastDoesNotBlock) {
  stream.enqueue([](StreamRef) { sleep_ms(5); });
  stream.wait(stream.record());
  stream.wait(Event());
  bool ran = false;
  stream.enqueue([&](StreamRef) { ran = true; });
  stream.synchronize();
  EXPECT_TRUE(ran);
}

TEST(StreamBorrowedTest, RunsOnTheCallingThreadAtOnce) {
  Stream stream = Stream::borrowed(StreamRef::host());
  std::thread::id where;
  stream.enqueue([&](StreamRef) { where = std::this_thread::get_id(); });
  EXPECT_EQ(where, std::this_thread::get_id());
  EXPECT_TRUE(stream.record().happened());
}

TEST(DeviceGuardTest, HostDeviceNeedsNothing) {
  const DeviceGuard outer{DeviceId::host()};
  const DeviceGuard inner{DeviceId::host()};
}

}  // namespace
}  // namespace sluiceway::test
