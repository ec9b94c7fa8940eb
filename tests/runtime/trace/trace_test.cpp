// The trace: the content of the file, the events that a full buffer drops, and its cost when off.
#include "runtime/trace/trace.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cerrno>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <thread>
#include <vector>

#include "kernels/base/error.h"

namespace sluiceway::test {
namespace {

using nlohmann::json;
using testing::ElementsAre;
using testing::HasSubstr;

class TraceTest : public testing::Test {
 protected:
  json written() {
    trace.write_json(path);
    std::ifstream file(path);
    return json::parse(file);
  }

  std::vector<json> events(const std::string& phase) {
    std::vector<json> found;
    const json document = written();
    for (const json& event : document["traceEvents"]) {
      if (event["ph"] == phase) found.push_back(event);
    }
    return found;
  }

  void TearDown() override { std::filesystem::remove(path); }

  Trace trace;
  const std::string path =
      testing::TempDir() + testing::UnitTest::GetInstance()->current_test_info()->name() + ".json";
};

TEST_F(TraceTest, RangeCarriesItsTimesRowAndBytes) {
  trace.enable(true);
  trace.add_row("host");
  const Trace::Row row = trace.add_row("d2h");
  trace.add_range(row, "layer 3", 10.5, 30.75, 4096);
  const std::vector<json> ranges = events("X");
  ASSERT_EQ(ranges.size(), 1U);
  EXPECT_EQ(ranges[0]["name"], "layer 3");
  EXPECT_EQ(ranges[0]["ts"], 10.5);
  EXPECT_EQ(ranges[0]["dur"], 20.25);
  EXPECT_EQ(ranges[0]["args"]["bytes"], 4096);
  for (const json& event : events("M")) {
    if (event["name"] == "thread_name" && event["args"]["name"] == "d2h") {
      EXPECT_EQ(event["tid"], ranges[0]["tid"]);
    }
  }
}

TEST_F(TraceTest, ZeroBytesAreWrittenAndNegativeBytesAreNot) {
  trace.enable(true);
  trace.add_range(0, "empty copy", 0, 1, 0);
  trace.add_range(0, "no copy", 1, 2);
  const std::vector<json> ranges = events("X");
  EXPECT_EQ(ranges.at(0)["args"]["bytes"], 0);
  EXPECT_FALSE(ranges.at(1).contains("args"));
}

TEST_F(TraceTest, EveryRowIsNamedOnceAndNoneIsThreadZero) {
  EXPECT_EQ(trace.add_row("d2h"), trace.add_row("d2h"));
  EXPECT_NE(trace.add_row("d2h"), trace.add_row("h2d"));
  std::vector<std::string> names;
  for (const json& event : events("M")) {
    if (event["name"] != "thread_name") continue;
    names.push_back(event["args"]["name"]);
    EXPECT_GT(event["tid"], 0);  // Perfetto shows thread 0 as the idle thread.
  }
  EXPECT_THAT(names, ElementsAre("d2h", "h2d"));
}

TEST_F(TraceTest, RangesAreSortedByBeginWhateverTheOrderOfArrival) {
  trace.enable(true);
  trace.add_range(0, "third", 30, 31);
  trace.add_range(0, "first", 10, 99);
  trace.add_range(1, "second", 20, 21);
  std::vector<std::string> names;
  for (const json& event : events("X")) names.push_back(event["name"]);
  EXPECT_THAT(names, ElementsAre("first", "second", "third"));
}

TEST_F(TraceTest, CounterKeepsItsNameTimeAndValue) {
  trace.enable(true);
  trace.add_counter("pinned bytes", 12.5, 4096);
  const std::vector<json> counters = events("C");
  ASSERT_EQ(counters.size(), 1U);
  EXPECT_EQ(counters[0]["name"], "pinned bytes");
  EXPECT_EQ(counters[0]["ts"], 12.5);
  EXPECT_EQ(counters[0]["args"]["value"], 4096.0);
}

TEST_F(TraceTest, QuotesNewlinesAndBrokenUtf8InNamesLeaveTheFileReadable) {
  trace.enable(true);
  trace.add_range(trace.add_row("row \"1\"\n"), "a\\b\t\xFF\xC3", 0, 1);
  EXPECT_THAT(events("X").at(0)["name"].get<std::string>(), HasSubstr("a\\b\t"));
}

TEST_F(TraceTest, NothingIsRecordedWhileOff) {
  { const TraceRange range(&trace, 0, "off"); }
  trace.add_range(0, "off", 0, 1);
  trace.add_counter("off", 0, 1);
  EXPECT_EQ(trace.range_count(), 0U);
  EXPECT_TRUE(events("X").empty());
  EXPECT_TRUE(events("C").empty());
}

TEST_F(TraceTest, RangeWithoutATraceDoesNothing) {
  { const TraceRange range(nullptr, 0, "none"); }
  EXPECT_EQ(trace.range_count(), 0U);
}

TEST_F(TraceTest, RangeSpansItsScope) {
  trace.enable(true);
  const double before = now_us();
  {
    const TraceRange range(&trace, 0, "sleep", 7);
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
  }
  const double after = now_us();
  const json range = events("X").at(0);
  EXPECT_GE(range["ts"].get<double>(), before);
  EXPECT_GE(range["dur"].get<double>(), 5000);
  EXPECT_LE(range["ts"].get<double>() + range["dur"].get<double>(), after + 1);
}

TEST_F(TraceTest, WhatDoesNotFitIsCountedAndSaidInTheFile) {
  Trace small(2);
  small.enable(true);
  for (int i = 0; i < 5; ++i) small.add_range(0, "range", i, i + 1);
  for (int i = 0; i < 3; ++i) small.add_counter("counter", i, i);
  EXPECT_EQ(small.range_count(), 2U);
  EXPECT_EQ(small.dropped(), 4U);
  small.write_json(path);
  std::ifstream file(path);
  EXPECT_EQ(json::parse(file)["otherData"]["dropped"], 4);
}

TEST_F(TraceTest, SpilledRangesAreAllInTheFileWithTheirNames) {
  constexpr int kRanges = 20'000;  // Some hundred KiB.
  trace.enable(true);
  trace.spill_beside(path);
  const Trace::Row row = trace.add_row("host");
  for (int i = 0; i < kRanges; ++i) {
    trace.add_range(row, "step " + std::to_string(i), i, i + 0.5, i % 2 == 0 ? i : -1);
    if (i % 1000 == 0) trace.add_counter("bytes", i, 2.0 * i);
  }
  const std::vector<json> ranges = events("X");
  ASSERT_EQ(ranges.size(), std::size_t{kRanges});
  for (int i = 0; i < kRanges; ++i) {
    const json& range = ranges[static_cast<std::size_t>(i)];
    ASSERT_EQ(range["name"], "step " + std::to_string(i));
    ASSERT_EQ(range["ts"], i);
    ASSERT_EQ(range["dur"], 0.5);
    ASSERT_EQ(range.contains("args"), i % 2 == 0);
  }
  EXPECT_EQ(events("C").size(), 20U);
  EXPECT_EQ(written()["otherData"]["ranges"], kRanges);
  EXPECT_EQ(trace.dropped(), 0U);
}

TEST_F(TraceTest, NameLongerThanTheBufferIsSpilledWhole) {
  trace.enable(true);
  trace.spill_beside(path);
  const std::string name(200'000, 'x');
  for (int i = 0; i < 3; ++i) trace.add_range(0, i == 1 ? name : "short", i, i + 1);
  const std::vector<json> ranges = events("X");
  ASSERT_EQ(ranges.size(), 3U);
  EXPECT_EQ(ranges[1]["name"], name);
}

TEST_F(TraceTest, SpillLeavesNoFileBehind) {
  const std::filesystem::path folder = path + ".folder";
  std::filesystem::create_directory(folder);
  {
    Trace spilling;
    spilling.enable(true);
    spilling.spill_beside(folder / "trace.json");
    for (int i = 0; i < 5000; ++i) spilling.add_range(0, "range", i, i + 1);
    EXPECT_TRUE(std::filesystem::is_empty(folder));
  }
  EXPECT_TRUE(std::filesystem::is_empty(folder));
  std::filesystem::remove_all(folder);
}

TEST_F(TraceTest, DiskThatTakesNothingKeepsTheFirstRangesAndCountsTheOthers) {
  constexpr std::size_t kRanges = 20'000;
  trace.enable(true);
  trace.spill_beside(testing::TempDir() + "no/such/folder/trace.json");
  for (std::size_t i = 0; i < kRanges; ++i) trace.add_range(0, "range", 1.0, 2.0);
  EXPECT_GT(trace.range_count(), 1000U);
  EXPECT_LT(trace.range_count(), 2000U);
  EXPECT_EQ(trace.range_count() + trace.dropped(), kRanges);
  EXPECT_EQ(events("X").size(), trace.range_count());
}

TEST_F(TraceTest, EmptyTraceIsAValidDocument) {
  const json document = written();
  EXPECT_TRUE(document["traceEvents"].is_array());
  EXPECT_EQ(document["otherData"]["ranges"], 0);
}

TEST_F(TraceTest, PathThatCannotBeOpenedIsAnIoErrorWithPathAndErrno) {
  const std::string nowhere = testing::TempDir() + "no/such/folder/trace.json";
  try {
    trace.write_json(nowhere);
    FAIL() << "wrote to " << nowhere;
  } catch (const IoError& error) {
    EXPECT_EQ(error.error_number(), ENOENT);
    EXPECT_EQ(error.path(), nowhere);
    EXPECT_THAT(error.what(), HasSubstr(nowhere));
  }
}

TEST_F(TraceTest, FullDiskIsAnIoError) {
  if (!std::filesystem::exists("/dev/full")) FAIL() << "this machine has no /dev/full";
  try {
    trace.write_json("/dev/full");
    FAIL() << "wrote to a full device";
  } catch (const IoError& error) {
    EXPECT_EQ(error.error_number(), ENOSPC);
  }
}

TEST_F(TraceTest, NothingIsLostOrTornWithManyThreadsAndAWriter) {
  constexpr int kThreads = 4;
  constexpr int kRanges = 2000;
  trace.enable(true);
  trace.spill_beside(path);
  std::vector<std::thread> threads;
  for (int t = 0; t < kThreads; ++t) {
    threads.emplace_back([this, t] {
      const Trace::Row row = trace.add_row("thread " + std::to_string(t));
      for (int i = 0; i < kRanges; ++i) {
        trace.add_range(row, "range " + std::to_string(i % 7), i, i + 1, i);
      }
    });
  }
  for (int i = 0; i < 3; ++i) written();
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(trace.range_count(), std::size_t{kThreads} * kRanges);
  EXPECT_EQ(events("X").size(), std::size_t{kThreads} * kRanges);
}

TEST_F(TraceTest, ClockNeverGoesBackAndTicksInMicroseconds) {
  const double before = now_us();
  std::this_thread::sleep_for(std::chrono::milliseconds(20));
  const double elapsed_us = now_us() - before;
  EXPECT_GE(elapsed_us, 20'000);
  EXPECT_LT(elapsed_us, 20'000'000);  // Milliseconds or nanoseconds would be far out.
}

// Returns the nanoseconds of one range, the best of several tries, since the machine may be busy.
double range_ns(Trace& trace) {
  constexpr int kRanges = 20'000;
  double best = 1e300;
  for (int attempt = 0; attempt < 10; ++attempt) {
    const double begin_us = now_us();
    for (int i = 0; i < kRanges; ++i) const TraceRange range(&trace, 0, "range");
    best = std::min(best, (now_us() - begin_us) * 1e3 / kRanges);
  }
  return best;
}

// Two clock reads and a lock when on, one relaxed load when off.
TEST_F(TraceTest, RangeThatIsOffCostsASmallFractionOfOneThatIsOn) {
  const double off_ns = range_ns(trace);
  trace.enable(true);
  const double on_ns = range_ns(trace);
  RecordProperty("off_ns", std::to_string(off_ns));
  RecordProperty("on_ns", std::to_string(on_ns));
  EXPECT_LT(off_ns, on_ns / 3) << "off " << off_ns << " ns, on " << on_ns << " ns";
}

}  // namespace
}  // namespace sluiceway::test
