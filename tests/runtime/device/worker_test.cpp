// Worker: order, the fate of queued jobs at the end, and the setup of its thread.
#include "runtime/device/worker.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <pthread.h>
#include <sched.h>
#include <sys/prctl.h>

#include <array>
#include <atomic>
#include <chrono>
#include <csignal>
#include <future>
#include <numeric>
#include <vector>

#include "kernels/base/error.h"

namespace sluiceway::test {
namespace {

using testing::AllOf;
using testing::HasSubstr;
using testing::ThrowsMessage;

// Returns the result of `ask` on the worker's thread.
template <typename Ask>
auto on_thread(Worker& worker, Ask ask) {
  std::promise<decltype(ask())> answer;
  worker.post([&] { answer.set_value(ask()); });
  return answer.get_future().get();
}

TEST(WorkerTest, JobsRunInTheOrderInWhichTheyWerePosted) {
  std::vector<int> order;
  {
    Worker worker({"order"});
    for (int i = 0; i < 1000; ++i) worker.post([&order, i] { order.push_back(i); });
  }
  std::vector<int> expected(1000);
  std::iota(expected.begin(), expected.end(), 0);
  EXPECT_EQ(order, expected);
}

TEST(WorkerTest, JobsOfOneThreadKeepTheirOrderAmongThoseOfOthers) {
  constexpr int kThreads = 4;
  constexpr int kJobs = 500;
  std::array<int, kThreads> next{};
  bool in_order = true;
  {
    Worker worker({"many"});
    std::vector<std::thread> threads;
    for (std::size_t t = 0; t < kThreads; ++t) {
      threads.emplace_back([&, t] {
        for (int i = 0; i < kJobs; ++i) {
          worker.post([&, t, i] { in_order = in_order && next[t]++ == i; });
        }
      });
    }
    for (std::thread& thread : threads) thread.join();
  }
  EXPECT_TRUE(in_order);
  EXPECT_THAT(next, testing::Each(kJobs));
}

TEST(WorkerTest, JobsPostedByJobsRunBeforeTheDestructorReturns) {
  int depth = 0;
  std::function<void(Worker&)> descend = [&](Worker& worker) {
    if (++depth < 100) worker.post([&] { descend(worker); });
  };
  {
    Worker worker({"chain"});
    worker.post([&] { descend(worker); });
  }
  EXPECT_EQ(depth, 100);
}

TEST(WorkerTest, WhatAJobHoldsIsLetGoBeforeTheNextJobStarts) {
  Worker worker({"release"});
  auto held = std::make_shared<int>(1);
  const std::weak_ptr<int> watch = held;
  worker.post([held = std::move(held)] {});
  EXPECT_TRUE(on_thread(worker, [&] { return watch.expired(); }));
}

TEST(WorkerTest, DestroyedByItsOwnJobItStillRunsWhatIsLeft) {
  std::promise<void> last_job;
  auto worker = std::make_shared<Worker>(Worker::Options{"suicide"});
  Worker* const bare = worker.get();
  bare->post([worker = std::move(worker), &last_job]() mutable {
    worker->post([&last_job] { last_job.set_value(); });
    worker.reset();
  });
  EXPECT_EQ(last_job.get_future().wait_for(std::chrono::seconds(30)), std::future_status::ready);
}

TEST(WorkerTest, KnowsItsOwnThread) {
  Worker worker({"self"});
  EXPECT_FALSE(worker.is_current());
  EXPECT_TRUE(on_thread(worker, [&] { return worker.is_current(); }));
}

TEST(WorkerTest, ThreadBearsTheFirstFifteenCharactersOfTheName) {
  Worker worker({"a name of more than fifteen"});
  const std::string name = on_thread(worker, [] {
    std::array<char, 16> text{};
    pthread_getname_np(pthread_self(), text.data(), text.size());
    return std::string(text.data());
  });
  EXPECT_EQ(name, "a name of more ");
}

TEST(WorkerTest, TimersHaveNoSlack) {
  Worker worker({"slack"});
  EXPECT_EQ(on_thread(worker, [] { return prctl(PR_GET_TIMERSLACK); }), 1);
}

TEST(WorkerTest, TakesNoInterruptSoThatItReachesTheProgram) {
  Worker worker({"signals"});
  const auto blocked = [](int number) {
    sigset_t mask;
    pthread_sigmask(SIG_BLOCK, nullptr, &mask);
    return sigismember(&mask, number) == 1;
  };
  EXPECT_TRUE(on_thread(worker, [&] { return blocked(SIGINT) && blocked(SIGTERM); }));
  EXPECT_FALSE(on_thread(worker, [&] { return blocked(SIGSEGV); }));
  EXPECT_FALSE(blocked(SIGINT)) << "the creating thread's mask was not restored";
}

TEST(WorkerTest, RunsOnTheProcessorThatWasAskedFor) {
  cpu_set_t ours;
  CPU_ZERO(&ours);
  ASSERT_EQ(sched_getaffinity(0, sizeof ours, &ours), 0);
  std::size_t last = 0;
  for (std::size_t cpu = 0; cpu < CPU_SETSIZE; ++cpu) {
    if (CPU_ISSET(cpu, &ours)) last = cpu;
  }
  Worker worker({"pinned", static_cast<int>(last)});
  const auto [count, cpu] = on_thread(worker, [last] {
    cpu_set_t mask;
    CPU_ZERO(&mask);
    pthread_getaffinity_np(pthread_self(), sizeof mask, &mask);
    return std::pair(CPU_COUNT(&mask), CPU_ISSET(last, &mask) != 0);
  });
  EXPECT_EQ(count, 1);
  EXPECT_TRUE(cpu);
}

TEST(WorkerTest, ProcessorThatThisMachineLacksIsRefused) {
  EXPECT_THAT(
      [] {
        Worker({"pinned", CPU_SETSIZE - 1});
      },
      ThrowsMessage<InvalidArgument>(
          AllOf(HasSubstr("pinned"), HasSubstr("processor " + std::to_string(CPU_SETSIZE - 1)))));
  EXPECT_THAT(
      [] {
        Worker({"pinned", CPU_SETSIZE});
      },
      ThrowsMessage<InvalidArgument>(HasSubstr("expected -1 to")));
  EXPECT_THAT(
      [] {
        Worker({"pinned", -2});
      },
      ThrowsMessage<InvalidArgument>(HasSubstr("processor -2")));
}

}  // namespace
}  // namespace sluiceway::test
