// The promises of every kind of stream: order, errors, waits, and the work that its end finishes.
#include "runtime/device/stream.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <functional>
#include <future>
#include <numeric>
#include <ostream>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#include "runtime/trace/trace.h"
#include "tests/support/backend.h"
#include "tests/support/stream_work.h"

namespace sluiceway::test {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::ThrowsMessage;

struct Kind {
  std::string name;
  DeviceId device;
  std::function<Stream()> make;
};

void PrintTo(const Kind& kind, std::ostream* out) { *out << kind.name; }

std::vector<Kind> host_kinds() {
  return {
      {"cpu_owned", DeviceId::host(), [] { return Stream::owned(DeviceId::host(), {"stream"}); }},
      {"cpu_borrowed", DeviceId::host(), [] { return Stream::borrowed(StreamRef::host()); }},
      {"cpu_host", DeviceId::host(), [] { return Stream::host({"stream"}); }}};
}

std::vector<Kind> built_kinds() {
  std::vector<Kind> kinds = host_kinds();
  for (const DeviceId device : built_devices()) {
    if (device.is_host()) continue;
    kinds.push_back({"cuda", device, [device] { return Stream::owned(device, {"stream"}); }});
  }
  return kinds;
}

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

// The promises of every kind.
class StreamTest : public testing::TestWithParam<Kind> {
 protected:
  Stream stream = GetParam().make();
};

// The promises of streams whose tasks run on a thread of ours.
class HostStreamTest : public StreamTest {};

std::string kind_name(const testing::TestParamInfo<Kind>& kind) { return kind.param.name; }

INSTANTIATE_TEST_SUITE_P(Kinds, StreamTest, testing::ValuesIn(built_kinds()), kind_name);
INSTANTIATE_TEST_SUITE_P(Kinds, HostStreamTest, testing::ValuesIn(host_kinds()), kind_name);

TEST_P(StreamTest, RunsTasksInOrder) {
  std::vector<int> order;
  for (int i = 0; i < 100; ++i) stream.enqueue(task_of([&order, i] { order.push_back(i); }));
  stream.synchronize();
  std::vector<int> expected(100);
  std::iota(expected.begin(), expected.end(), 0);
  EXPECT_EQ(order, expected);
}

TEST_P(StreamTest, HandsItsDeviceToItsTasks) {
  StreamRef seen = StreamRef::cuda(7, nullptr);
  stream.enqueue([&](StreamRef ref) { seen = ref; });
  stream.synchronize();
  EXPECT_EQ(seen.device(), GetParam().device);
  EXPECT_EQ(seen.native() == nullptr, seen.is_host());
  EXPECT_EQ(stream.device(), GetParam().device);
}

TEST_P(StreamTest, DoneComesInOrderAndAfterItsTask) {
  std::atomic<int> ran{0};
  std::vector<int> ran_before;
  for (int i = 0; i < 10; ++i) {
    stream.enqueue(task_of([&] { ++ran; }), [&](const Completion&) { ran_before.push_back(ran); });
  }
  stream.synchronize();
  ASSERT_EQ(ran_before.size(), 10U);
  for (int i = 0; i < 10; ++i) EXPECT_GT(ran_before[static_cast<std::size_t>(i)], i);
}

TEST_P(HostStreamTest, DoneRunsAfterItsTaskAndBeforeTheNextTask) {
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
  stream.enqueue(task_of([] { sleep_ms(10); }), [&](const Completion& c) { seen = c; });
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
  stream.enqueue(task_of([&] { later = true; }));
  stream.synchronize();  // Must not rethrow: `done` received it.
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
  stream = GetParam().make();
  stream.synchronize();
}

TEST_P(StreamTest, DestructorFinishesWhatWasEnqueued) {
  int finished = 0;
  Event last;
  {
    const Stream moved = [&] {
      Stream local = std::move(stream);
      for (int i = 0; i < 20; ++i) {
        local.enqueue(task_of([] { sleep_ms(1); }), [&](const Completion&) { ++finished; });
      }
      last = local.record();
      return local;
    }();
  }
  EXPECT_EQ(finished, 20);
  EXPECT_TRUE(last.happened());
  stream = GetParam().make();
}

TEST_P(StreamTest, MoveAssignmentFinishesTheOldWork) {
  std::atomic<bool> finished{false};
  stream.enqueue(task_of([&] {
    sleep_ms(20);
    finished = true;
  }));
  stream = GetParam().make();
  EXPECT_TRUE(finished);
}

TEST_P(StreamTest, DoneMayEnqueueOnItsOwnStreamAndOnAnother) {
  Stream other = Stream::host({"other"});
  std::promise<void> both;
  std::atomic<int> ran{0};
  const Stream::Task count = task_of([&] {
    if (++ran == 2) both.set_value();
  });
  stream.enqueue([](StreamRef) {},
                 [&](const Completion&) {
                   stream.enqueue(count);
                   other.enqueue(count);
                 });
  EXPECT_EQ(both.get_future().wait_for(std::chrono::seconds(30)), std::future_status::ready);
  stream.synchronize();
}

TEST_P(StreamTest, WaitHoldsLaterWorkUntilTheEventOfAnotherStream) {
  // A device stream never waits for a host stream.
  Stream other = Stream::owned(GetParam().device, {"other"});
  bool written = false;
  bool seen = false;
  other.enqueue(task_of([&] {
    sleep_ms(20);
    written = true;
  }));
  stream.wait(other.record());
  stream.enqueue(task_of([&] { seen = written; }));
  stream.synchronize();
  EXPECT_TRUE(seen);
}

TEST_P(StreamTest, WaitForItsOwnPastDoesNotBlock) {
  stream.enqueue(task_of([] { sleep_ms(5); }));
  stream.wait(stream.record());
  stream.wait(Event());
  bool ran = false;
  stream.enqueue(task_of([&] { ran = true; }));
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
