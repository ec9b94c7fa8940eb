// HostSignal: a word is never lowered while a stream may still wait for it.
#include "runtime/device/signal_word.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <array>
#include <atomic>
#include <set>
#include <stdexcept>
#include <thread>

#include "runtime/device/event_state.h"

namespace sluiceway::test {
namespace {

class SignalWordTest : public testing::Test {
 protected:
  std::shared_ptr<HostEvent> awaited = std::make_shared<HostEvent>();  // What the stream waits for.
  std::shared_ptr<HostEvent> behind = std::make_shared<HostEvent>();   // When it has passed.
  std::vector<std::unique_ptr<std::array<std::uint32_t, SignalWords::kPageWords>>> pages;
  SignalWords words{[this] {
    pages.push_back(std::make_unique<std::array<std::uint32_t, SignalWords::kPageWords>>());
    return pages.back()->data();
  }};
  std::uint32_t* held = nullptr;  // The word that the stream was told to wait for.

  // A stream waits for `awaited`; nobody but its events keeps the signal afterwards.
  void let_stream_wait(const std::function<Event()>& record) {
    hold_until(
        Event(awaited), HostSignal::make(words), [this](std::uint32_t* word) { held = word; },
        record);
  }
};

TEST_F(SignalWordTest, EventRaisesTheWordThatTheStreamWaitsFor) {
  let_stream_wait([this] { return Event(behind); });
  EXPECT_EQ(*held, 0U);
  awaited->set();
  EXPECT_EQ(*held, 1U);
}

TEST_F(SignalWordTest, WordIsUsedAgainOnlyWhenTheStreamHasPassedIt) {
  let_stream_wait([this] { return Event(behind); });
  awaited->set();
  std::uint32_t* const meanwhile = words.take();
  EXPECT_NE(meanwhile, held);
  behind->set();
  EXPECT_EQ(words.take(), held);
}

// The stream still waits for its word, so nobody may lower it: it would wait for ever.
TEST_F(SignalWordTest, WordIsNeverUsedAgainWhenRecordingTheEndOfTheWaitThrows) {
  EXPECT_THROW(let_stream_wait([]() -> Event { throw std::runtime_error("no event"); }),
               std::runtime_error);
  awaited->set();
  EXPECT_EQ(*held, 1U);
  for (std::size_t i = 0; i < 2 * SignalWords::kPageWords; ++i) {
    std::uint32_t* const word = words.take();
    ASSERT_NE(word, held);
    *word = 0;
  }
  EXPECT_EQ(*held, 1U);
}

TEST_F(SignalWordTest, EventThatHappenedBeforeTheWaitRaisesTheWordAtOnce) {
  awaited->set();
  std::uint32_t seen = 0;
  hold_until(
      Event(awaited), HostSignal::make(words), [&](std::uint32_t* word) { seen = *word; },
      [this] { return Event(behind); });
  EXPECT_EQ(seen, 1U);
}

TEST_F(SignalWordTest, WordsOfEveryPageAreDistinctAndComeBackLowered) {
  std::set<std::uint32_t*> seen;
  for (std::size_t i = 0; i <= SignalWords::kPageWords; ++i) {
    EXPECT_TRUE(seen.insert(words.take()).second);
  }
  EXPECT_EQ(pages.size(), 2U);  // The boundary between the two pages was crossed.
  std::uint32_t* const last = *seen.rbegin();
  *last = 1;
  words.give_back(last);
  let_stream_wait([this] { return Event(behind); });
  EXPECT_EQ(held, last);
  EXPECT_EQ(*held, 0U);
}

// The driver may wait for the device, and that for a thread that first gives its word back.
TEST_F(SignalWordTest, WordsComeBackWhileAPageIsAwaited) {
  std::vector<std::uint32_t*> taken;
  std::array<std::uint32_t, 2 * SignalWords::kPageWords> memory{};
  std::size_t pages_given = 0;
  SignalWords ring([&] {
    if (pages_given == 1) std::thread([&] { ring.give_back(taken[7]); }).join();
    return memory.data() + SignalWords::kPageWords * pages_given++;
  });
  for (std::size_t i = 0; i <= SignalWords::kPageWords; ++i) taken.push_back(ring.take());
  const std::set<std::uint32_t*> distinct(taken.begin(), taken.end());
  EXPECT_GE(distinct.size(), SignalWords::kPageWords);
  EXPECT_EQ(pages_given, 2U);
  // All words of both pages but those that are still held are there, each once.
  for (std::size_t i = distinct.size(); i < memory.size(); ++i) taken.push_back(ring.take());
  EXPECT_EQ(std::set<std::uint32_t*>(taken.begin(), taken.end()).size(), memory.size());
  EXPECT_EQ(pages_given, 2U);
}

TEST_F(SignalWordTest, AnotherThreadMayRaiseAndPass) {
  let_stream_wait([this] { return Event(behind); });
  std::thread other([this] {
    awaited->set();
    while (std::atomic_ref(*held).load(std::memory_order_acquire) == 0) std::this_thread::yield();
    behind->set();
  });
  other.join();
  EXPECT_EQ(words.take(), held);
}

}  // namespace
}  // namespace sluiceway::test
