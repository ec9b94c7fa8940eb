// Cuts the power at any write or flush; unflushed writes are lost, kept or torn in any combination.
// The store opens at a whole step, and the resumed run ends like one that was never cut.
#include <gtest/gtest.h>

#include <cstdlib>
#include <string>
#include <vector>

#include "kernels/base/error.h"
#include "runtime/memory/budget.h"
#include "runtime/store/chunk_store.h"
#include "tests/support/power_cut_io.h"
#include "tests/support/small_run.h"

namespace sluiceway::test {
namespace {

using Medium = PowerCutIo::Medium;
using Media = std::vector<std::shared_ptr<Medium>>;

constexpr std::uint64_t kSteps = 5;

// SLUICEWAY_POWER_CUTS=1000 runs that many seeds.
std::uint64_t seeds() {
  const char* const text = std::getenv("SLUICEWAY_POWER_CUTS");
  return text == nullptr ? 8 : std::strtoull(text, nullptr, 10);
}

ChunkStore::Drives drives_on(const Media& media, std::uint64_t seed, std::uint64_t dies_at,
                             PowerCutIo** first = nullptr) {
  ChunkStore::Drives drives;
  for (const auto& medium : media) {
    PowerCutIo::Options options;
    options.seed = seed + drives.size();
    options.dies_at = drives.empty() ? dies_at : 0;
    auto io = std::make_unique<PowerCutIo>(medium, options);
    if (drives.empty() && first != nullptr) *first = io.get();
    Drive::Options patient;
    patient.first_pause = std::chrono::milliseconds(0);
    patient.read_tries = 1;
    drives.push_back(std::make_unique<Drive>(std::move(io), patient));
  }
  return drives;
}

// Adds a slot and pins after step 2; returns the last step whose commit returned.
std::uint64_t run_to_the_end(ChunkStore& store) {
  for (std::uint64_t step = store.live().step + 1; step <= kSteps; ++step) {
    if (!write_step(store, step).empty()) return step - 1;
    store.commit(step, run_state_of(step));
    if (step != 2) continue;
    if (store.layout().regions[0].slots() == 2) store.add_slots(0, 1);
    store.pin();
  }
  return kSteps;
}

Media new_media(const Layout& layout) {
  Media media;
  for (const DriveShare& drive : layout.drives) {
    media.push_back(std::make_shared<Medium>(drive.bytes));
  }
  return media;
}

class PowerCutTest : public testing::TestWithParam<std::uint32_t> {
 protected:
  Budget budget = Budget::unlimited();
  Layout layout = run_layout(GetParam());

  std::uint64_t operations_of_a_run(const Media& media) {
    PowerCutIo* first = nullptr;
    const auto store = ChunkStore::open(budget, drives_on(media, 1, 0, &first));
    run_to_the_end(*store);
    return first->operations();
  }

  Media fresh() {
    Media media = new_media(layout);
    ChunkStore::create(budget, drives_on(media, 1, 0), layout);
    return media;
  }

  // Cuts the power once, then continues to the end.
  void cut_and_resume(std::uint64_t seed, std::uint64_t dies_at) {
    SCOPED_TRACE(testing::Message() << "seed " << seed << ", power goes at operation " << dies_at);
    const Media media = fresh();
    std::uint64_t committed = 0;
    try {
      const auto store = ChunkStore::open(budget, drives_on(media, seed, dies_at));
      try {
        committed = run_to_the_end(*store);
      } catch (const IoError&) {
        committed = store->live().step;
      }
    } catch (const IoError&) {
      FAIL() << "opening writes nothing";
    }
    const auto store = ChunkStore::open(budget, drives_on(media, seed + 1000, 0));
    // The step whose commit was cut may be there, whole; a step whose commit returned is there.
    EXPECT_GE(store->live().step, committed);
    EXPECT_LE(store->live().step, committed + 1);
    EXPECT_EQ(difference(*store, Version::kLive, store->live()), "");
    if (store->pinned()) {
      EXPECT_EQ(difference(*store, Version::kPinned, *store->pinned()), "");
    }
    run_to_the_end(*store);
    EXPECT_EQ(store->live().step, kSteps);
    EXPECT_EQ(difference(*store, Version::kLive, store->live()), "");
    EXPECT_TRUE(store->verify().empty());
  }
};

TEST_P(PowerCutTest, AtEveryWriteAndFlush) {
  const std::uint64_t operations = operations_of_a_run(fresh());
  ASSERT_GT(operations, 40U);
  for (std::uint64_t seed = 0; seed < seeds(); ++seed) {
    for (std::uint64_t at = 1; at <= operations && !HasFailure(); ++at) cut_and_resume(seed, at);
  }
}

// A store does not exist before it is completely made, and the next attempt succeeds.
TEST_P(PowerCutTest, WhileItIsMade) {
  for (std::uint64_t at = 1;; ++at) {
    const Media media = new_media(layout);
    bool made = true;
    try {
      ChunkStore::create(budget, drives_on(media, at, at), layout);
    } catch (const IoError&) {
      made = false;
    }
    if (made) break;
    ASSERT_LT(at, 100U);
    try {
      const auto store = ChunkStore::open(budget, drives_on(media, at, 0));
      EXPECT_EQ(store->live().step, 0U);
      EXPECT_EQ(difference(*store, Version::kLive, store->live()), "");
    } catch (const InvalidArgument&) {  // Most cuts leave no store, and the error says so.
    } catch (const Corrupt&) {          // Others leave a torn header.
    }
    const auto again = ChunkStore::create(budget, drives_on(media, at, 0), layout);
    run_to_the_end(*again);
    EXPECT_EQ(difference(*again, Version::kLive, again->live()), "");
  }
}

INSTANTIATE_TEST_SUITE_P(Drives, PowerCutTest, testing::Values(1U, 2U));

// A drive that reports a flush without doing it: damage is found, or the step is whole.
TEST(LostFlushTest, IsNeverAStepThatIsNotWhole) {
  Budget budget = Budget::unlimited();
  const Layout layout = run_layout();
  for (std::uint64_t lie = 1; lie < 2 * kSteps; ++lie) {
    for (std::uint64_t dies_at = 20; dies_at < 60; dies_at += 3) {
      const Media media = new_media(layout);
      ChunkStore::create(budget, drives_on(media, 1, 0), layout);
      try {
        PowerCutIo::Options options;
        options.seed = lie;
        options.dies_at = dies_at;
        options.lies_at = lie;
        ChunkStore::Drives drives;
        drives.push_back(std::make_unique<Drive>(std::make_unique<PowerCutIo>(media[0], options)));
        const auto store = ChunkStore::open(budget, std::move(drives));
        run_to_the_end(*store);
      } catch (const IoError&) {
      }
      try {
        const auto store = ChunkStore::open(budget, drives_on(media, 9, 0));
        const std::string said = difference(*store, Version::kLive, store->live());
        EXPECT_TRUE(said.empty() || said.find("checksum") != std::string::npos) << said;
      } catch (const Corrupt&) {
      }
    }
  }
}

}  // namespace
}  // namespace sluiceway::test
