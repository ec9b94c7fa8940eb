// The effect of a task that throws: other lanes finish their running tasks, then every call names
// the culprit.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>
#include <functional>
#include <future>
#include <memory>
#include <new>
#include <optional>
#include <stdexcept>
#include <thread>

#include "kernels/base/error.h"
#include "runtime/schedule/executor.h"
#include "runtime/schedule/lane_error.h"
#include "tests/runtime/schedule/lanes_fixture.h"

namespace sluiceway::test {
namespace {

using std::chrono::milliseconds;
using testing::AllOf;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;
using testing::ThrowsMessage;

Stream::Task refused_launch() {
  return [](StreamRef) { throw CudaError("launch: refused, error 9"); };
}

// A failure drops waiting payloads, and with them everything that their tasks captured.
void wait_until_dropped(const std::shared_ptr<int>& captured) {
  while (captured.use_count() > 1) std::this_thread::sleep_for(milliseconds(1));
}

class ExecutorFailureTest : public testing::TestWithParam<std::tuple<LaneId, StreamKind>> {
 protected:
  LaneId lane() const { return std::get<0>(GetParam()); }
  StreamKind kind() const { return std::get<1>(GetParam()); }
};

// I6
TEST_P(ExecutorFailureTest, EveryLaterCallNamesLaneAndPayload) {
  LanesFixture f(3, Order::kEdf, kind());
  Payload p = f.payload(2);
  set_hop(p, lane(), refused_launch());
  f.executor->submit(std::move(p));
  const auto names_both = ThrowsMessage<CudaError>(
      "executor: lane " + four_lanes()[static_cast<std::size_t>(lane())].name +
      ", payload layer2: launch: refused, error 9");
  EXPECT_THAT([&] { f.executor->drain(); }, names_both);
  EXPECT_THAT([&] { f.executor->submit(f.payload(1)); }, names_both);
  EXPECT_THAT([&] { f.executor->wait(0); }, names_both);
  EXPECT_THAT([&] { f.executor->release(); }, names_both);
  EXPECT_THAT([&] { f.executor->recall(2); }, names_both);
  EXPECT_THAT([&] { f.executor->busy(2); }, names_both);
  EXPECT_THAT([&] { f.executor->moves(2); }, names_both);
  Stream reader = Stream::borrowed(StreamRef::host());
  EXPECT_THAT([&] { f.executor->acquire(2, reader); }, names_both);
  EXPECT_THAT([&] { f.executor->set_transition(1); }, names_both);
  EXPECT_EQ(f.log.entries().size(),
            static_cast<std::size_t>(lane()));  // It went no further, nothing followed.
}

INSTANTIATE_TEST_SUITE_P(
    Executor, ExecutorFailureTest,
    testing::Combine(testing::Values(kD2h, kHost, kH2d, kApply),
                     testing::Values(StreamKind::kWorkers, StreamKind::kInline)),
    [](const auto& param) {
      const bool workers = std::get<1>(param.param) == StreamKind::kWorkers;
      return four_lanes()[static_cast<std::size_t>(std::get<0>(param.param))].name +
             (workers ? "_workers" : "_inline");
    });

// I5, I6
TEST(ExecutorFailureCasesTest, OtherLanesFinishTheirTaskFirstAndDropTheRest) {
  LanesFixture f(4);
  Latch host, d2h;
  Payload failing = f.payload(3);
  failing.hops[kHost].run = [&](StreamRef) {
    host.pass();
    throw IoError("read: cannot", 5, "arena.bin", 4096);
  };
  f.executor->submit(std::move(failing));
  host.wait_for_arrival();
  f.executor->submit(f.blocked_payload(2, kD2h, d2h));  // Runs when the host lane fails.
  d2h.wait_for_arrival();
  auto captured = std::make_shared<int>(3);
  Payload waiting = f.payload(1);
  waiting.hops[kHost].run = [captured](StreamRef) {};
  f.executor->submit(std::move(waiting));
  f.executor->submit(f.payload(0, kHost));
  host.open();
  std::thread opener([&] {
    wait_until_dropped(captured);  // The host lane's failure has been noticed.
    d2h.open();
  });
  try {
    f.executor->wait(3);
    ADD_FAILURE() << "wait(3) returned";
  } catch (const IoError& e) {
    EXPECT_STREQ(e.what(), "executor: lane host, payload layer3: read: cannot");
    EXPECT_EQ(e.error_number(), 5);
    EXPECT_EQ(e.path(), "arena.bin");
    EXPECT_EQ(e.offset(), 4096);
  }
  EXPECT_THAT(f.log.lanes_of(2), ElementsAre(kD2h));  // Finished before wait() threw.
  EXPECT_THAT(f.log.lanes_of(1), IsEmpty());
  EXPECT_THAT(f.log.lanes_of(0), IsEmpty());
  EXPECT_EQ(captured.use_count(), 1);
  opener.join();
}

// I6
TEST(ExecutorFailureCasesTest, TheFirstErrorIsKept) {
  LanesFixture f(3);
  Latch host, d2h;
  Payload first = f.payload(1);
  first.hops[kHost].run = [&](StreamRef) {
    host.pass();
    throw Timeout("first");
  };
  f.executor->submit(std::move(first));
  host.wait_for_arrival();
  Payload second = f.payload(0);
  second.hops[kD2h].run = [&](StreamRef) {
    d2h.pass();
    throw Corrupt("second");
  };
  f.executor->submit(std::move(second));
  d2h.wait_for_arrival();
  auto captured = std::make_shared<int>(3);
  Payload waiting = f.payload(2);
  waiting.hops[kHost].run = [captured](StreamRef) {};
  f.executor->submit(std::move(waiting));
  std::thread waiter([&] {
    EXPECT_THAT([&] { f.executor->wait(0); }, ThrowsMessage<Timeout>(HasSubstr("layer1: first")));
  });
  host.open();
  wait_until_dropped(captured);
  d2h.open();
  waiter.join();
  EXPECT_THAT([&] { f.executor->drain(); }, ThrowsMessage<Timeout>(HasSubstr("layer1: first")));
}

// A hop's captures are destroyed when it ends, and others may wait for exactly that.
TEST(ExecutorFailureCasesTest, WhoWaitsForWhatAFailedHopHeldGoesNoFurther) {
  struct AtEnd {
    std::function<void()> act;
    ~AtEnd() { act(); }
  };
  LanesFixture f(2);
  std::optional<HopDone> waiting;
  std::promise<void> waits;
  Payload other = f.payload(0);
  other.hops[kHost].run = nullptr;
  other.hops[kHost].start = [&](StreamRef, const HopDone& done) {
    waiting = done;
    waits.set_value();
  };
  f.executor->submit(std::move(other));
  waits.get_future().wait();
  auto held = std::make_shared<AtEnd>();
  held->act = [&] {
    (*waiting)();
    for (int i = 0; i < 50 && f.log.lanes_of(0).size() < 2; ++i) {
      std::this_thread::sleep_for(milliseconds(2));
    }
  };
  Payload failing = f.payload(1);
  failing.hops[kD2h].run = [held](StreamRef) { throw Corrupt("half of it"); };
  const std::weak_ptr<AtEnd> gone = held;
  held.reset();
  f.executor->submit(std::move(failing));
  EXPECT_THAT([&] { f.executor->drain(); }, ThrowsMessage<Corrupt>(HasSubstr("half of it")));
  EXPECT_TRUE(gone.expired());
  EXPECT_THAT(f.log.lanes_of(0), ElementsAre(kD2h));
}

// I6
TEST(ExecutorFailureCasesTest, AFailedExecutorIsDestroyedWithoutWaitingForEver) {
  LanesFixture f(2);
  Payload p = f.payload(1);
  p.hops[kH2d].run = refused_launch();
  f.executor->submit(std::move(p));
  f.executor.reset();
  EXPECT_THAT(f.log.lanes_of(1), ElementsAre(kD2h, kHost));
}

template <typename T>
std::exception_ptr named(const T& error) {
  return name_error(std::make_exception_ptr(error), "host", "w");
}

TEST(NameErrorTest, KeepsTheTypeAndNamesLaneAndPayload) {
  const auto rethrow = [](const std::exception_ptr& error) {
    return [error] { std::rethrow_exception(error); };
  };
  const std::string text = "executor: lane host, payload w: why";
  EXPECT_THAT(rethrow(named(InvalidArgument("why"))), ThrowsMessage<InvalidArgument>(text));
  EXPECT_THAT(rethrow(named(OutOfMemory("why"))), ThrowsMessage<OutOfMemory>(text));
  EXPECT_THAT(rethrow(named(Timeout("why"))), ThrowsMessage<Timeout>(text));
  EXPECT_THAT(rethrow(named(Corrupt("why"))), ThrowsMessage<Corrupt>(text));
  EXPECT_THAT(rethrow(named(Unavailable("why"))), ThrowsMessage<Unavailable>(text));
  EXPECT_THAT(rethrow(named(CudaError("why"))), ThrowsMessage<CudaError>(text));
  EXPECT_THAT(rethrow(named(std::runtime_error("why"))), ThrowsMessage<Error>(text));
  EXPECT_THAT(rethrow(named(std::bad_alloc())),
              ThrowsMessage<OutOfMemory>(HasSubstr("lane host, payload w: std::bad_alloc")));
  EXPECT_THAT(rethrow(named(7)),
              ThrowsMessage<Error>(HasSubstr("payload w: not a std::exception")));
}

}  // namespace
}  // namespace sluiceway::test
