// ScalarLog on a file that was cut, changed, or is no log: it continues from the good prefix.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <vector>

#include "kernels/base/error.h"
#include "runtime/engine/zo/scalar_log.h"
#include "runtime/trace/warning.h"
#include "tests/support/io_back_ends.h"
#include "tests/support/log_summary.h"
#include "tests/support/logged_run.h"
#include "tests/support/rng.h"

namespace sluiceway::test {
namespace {

using testing::AllOf;
using testing::HasSubstr;
using testing::ThrowsMessage;

class DamagedLogTest : public testing::TestWithParam<std::uint32_t> {
 protected:
  static constexpr std::uint64_t steps = 6;

  DamagedLogTest() {
    ScalarLog log = ScalarLog::create(path.str(), shape, base, options);
    append_steps(log, base.step + steps);
    whole = file_bytes(path.str());
  }
  ScalarLog open() { return ScalarLog::open(path.str(), shape, {base, {}}, options); }
  std::vector<std::byte> prefix(std::size_t entries) const {
    const auto size = static_cast<std::ptrdiff_t>(kLogHeaderBytes + entries * entry);
    return {whole.begin(), whole.begin() + size};
  }
  void remove_kept() {
    for (const std::string& kept : files_beside(path.str(), ".")) std::filesystem::remove(kept);
  }

  Rng rng{20261123 + GetParam()};
  LogShape shape = random_shape(rng, GetParam());
  Base base = random_base(rng, 1, 1000);
  LogOptions options{.busy_wait = std::chrono::milliseconds(0),
                     .sync_interval = std::chrono::hours(1)};
  ScratchPath path{memory_folder()};
  std::size_t entry = entry_bytes(shape);
  std::vector<std::byte> whole;
};

TEST_P(DamagedLogTest, CutAtAnyByteItGoesOnAfterItsLastWholeEntry) {
  for (std::size_t size = 0; size < whole.size(); ++size) {
    const std::vector<std::byte> cut(whole.begin(), whole.begin() + static_cast<long>(size));
    write_file(path.str(), cut);
    if (size < kLogHeaderBytes) {
      EXPECT_THROW(open(), Corrupt) << size;
      EXPECT_EQ(file_bytes(path.str()), cut);
      continue;
    }
    const std::size_t left = (size - kLogHeaderBytes) / entry;
    const std::size_t torn = (size - kLogHeaderBytes) % entry;
    ScalarLog log = open();
    ASSERT_EQ(log.next_step(), base.step + left);
    ASSERT_EQ(difference(log.history()), "");
    ASSERT_EQ(log.lost().has_value(), torn > 0);
    if (torn > 0) {
      EXPECT_EQ(log.lost()->bytes, torn);
      EXPECT_EQ(log.lost()->entries, 0U);
      EXPECT_EQ(log.lost()->offset, size - torn);
      EXPECT_EQ(log.lost()->step, base.step + left);
      EXPECT_THAT(log.lost()->text, HasSubstr("the last entry is torn"));
      EXPECT_EQ(file_bytes(path.str()), cut);  // Nothing has changed yet.
    }
    append_steps(log, base.step + steps);
    ASSERT_EQ(file_bytes(path.str()), whole);
    ASSERT_TRUE(files_beside(path.str(), ".").empty());
  }
}

TEST_P(DamagedLogTest, ABitFlippedInAnyByteCostsWhatFollowsAndKeepsItBeside) {
  for (std::size_t at = 0; at < whole.size(); ++at) {
    std::vector<std::byte> bytes = whole;
    bytes[at] ^= static_cast<std::byte>(1U << rng.below(8));
    write_file(path.str(), bytes);
    if (at < kLogHeaderBytes) {
      EXPECT_THROW(open(), Corrupt) << at;
      continue;
    }
    const std::size_t good = (at - kLogHeaderBytes) / entry;
    {
      ScalarLog log = open();
      ASSERT_EQ(log.next_step(), base.step + good) << at;
      ASSERT_TRUE(log.lost());
      EXPECT_EQ(log.lost()->entries, steps - good);
      EXPECT_EQ(log.lost()->bytes, (steps - good) * entry);
      EXPECT_THAT(log.lost()->text,
                  HasSubstr("goes on from step " + std::to_string(base.step + good)));
      EXPECT_THAT(log.lost()->text, HasSubstr("entry " + std::to_string(good)));
    }
    ASSERT_EQ(file_bytes(path.str()), bytes);  // Opening and closing changes nothing.
    ASSERT_TRUE(inspect_log(path.str()).lost);
    ScalarLog log = open();
    append_steps(log, base.step + good + 1);
    ASSERT_EQ(file_bytes(path.str()), prefix(good + 1));
    const std::vector<std::string> kept = files_beside(path.str(), ".lost.");
    ASSERT_EQ(kept.size(), 1U);
    const std::vector<std::byte> lost(bytes.end() - static_cast<long>((steps - good) * entry),
                                      bytes.end());
    ASSERT_EQ(file_bytes(kept[0]), lost);
    remove_kept();
  }
}

TEST_P(DamagedLogTest, WhoWritesIsToldWhatIsLostAndWhoReadsIsNot) {
  std::vector<std::string> told;
  const WarningHandler before =
      set_warning_handler([&](const std::string& text) { told.push_back(text); });
  const auto opened = [&](std::size_t bytes, Access access) {
    write_file(path.str(), {whole.data(), bytes});
    LogOptions other = options;
    other.access = access;
    told.clear();
    (void)ScalarLog::open(path.str(), shape, {base, {}}, other);
    return told.size();
  };
  EXPECT_EQ(opened(whole.size(), Access::kReadWrite), 0U);
  EXPECT_EQ(opened(whole.size() - 1, Access::kRead), 0U);
  ASSERT_EQ(opened(whole.size() - 1, Access::kReadWrite), 1U);
  EXPECT_THAT(told[0], HasSubstr(path.str()));
  EXPECT_THAT(told[0], HasSubstr(std::to_string(entry - 1) + " bytes (0 whole entries)"));
  whole[whole.size() - 1] ^= std::byte{1};
  ASSERT_EQ(opened(whole.size(), Access::kReadWrite), 1U);
  EXPECT_THAT(told[0], HasSubstr("(1 whole entries) after it are lost"));
  EXPECT_THAT(told[0], HasSubstr("are kept beside it"));
  set_warning_handler(before);
}

TEST_P(DamagedLogTest, ADamagedHeaderIsNamedWithItsFile) {
  whole[20] ^= std::byte{1};
  write_file(path.str(), whole);
  EXPECT_THAT([&] { open(); },
              ThrowsMessage<Corrupt>(
                  AllOf(HasSubstr(path.str()), HasSubstr("replace it with a copy of the log"))));
}

TEST_P(DamagedLogTest, WhatWasKeptBeforeIsNotInTheWay) {
  std::vector<std::byte> bytes = whole;
  bytes[kLogHeaderBytes + entry] ^= std::byte{1};
  for (int i = 0; i < 2; ++i) {  // As after a kill between the two calls.
    write_file(path.str(), bytes);
    ScalarLog log = open();
    append_steps(log, base.step + steps);
    EXPECT_EQ(files_beside(path.str(), ".lost.").size(), 1U);
  }
  EXPECT_EQ(file_bytes(path.str()), whole);
  remove_kept();
}

TEST_P(DamagedLogTest, BytesOfTwoEntriesThatChangedPlacesAreNotTakenForThem) {
  std::vector<std::byte> bytes = whole;
  const auto begin = bytes.begin() + kLogHeaderBytes;
  std::swap_ranges(begin, begin + static_cast<long>(entry), begin + static_cast<long>(entry));
  write_file(path.str(), bytes);
  EXPECT_EQ(open().next_step(), base.step);
}

TEST_P(DamagedLogTest, SoundEntryThatDoesNotFollowEndsThePrefix) {
  const LogHeader header = decode_log_header(whole);
  std::vector<std::byte> bytes = whole;
  const auto more = encode(update_entry(shape, base.step + steps + 1), header, steps);
  bytes.insert(bytes.end(), more.begin(), more.end());
  write_file(path.str(), bytes);
  const ScalarLog log = open();
  EXPECT_EQ(log.next_step(), base.step + steps);
  ASSERT_TRUE(log.lost());
  EXPECT_THAT(log.lost()->text, HasSubstr("update of step 1007, expected step 1006"));
}

TEST_P(DamagedLogTest, LogOfAnotherShapeIsRefused) {
  const auto refuses = [&](LogShape asked, const char* text) {
    EXPECT_THAT(
        [&] {
          ScalarLog::open(path.str(), asked, {base, {}}, options);
        },
        ThrowsMessage<InvalidArgument>(HasSubstr(text)));
  };
  LogShape asked = shape;
  asked.directions += 1;
  refuses(asked, "directions");
  asked = shape;
  asked.groups = 9;
  refuses(asked, "expected 9 groups");
  asked = shape;
  asked.run_seed = 424242;
  refuses(asked, "run seed 424242");
  asked = shape;
  asked.noise.rank = 77;
  refuses(asked, "of rank 77");
  EXPECT_EQ(file_bytes(path.str()), whole);
}

TEST_P(DamagedLogTest, LogOfAnotherBaseIsRefusedWithBothHashes) {
  const Base other = random_base(rng, 1, 1000);
  for (const std::string& hash : {to_hex(base.hash), to_hex(other.hash)}) {
    EXPECT_THAT(
        [&] {
          ScalarLog::open(path.str(), shape, {other, {}}, options);
        },
        ThrowsMessage<InvalidArgument>(HasSubstr(hash)));
  }
  Base same_hash = base;
  same_hash.generation = 8;
  EXPECT_THAT(
      [&] {
        ScalarLog::open(path.str(), shape, {same_hash, {}}, options);
      },
      ThrowsMessage<InvalidArgument>(HasSubstr("that hash is known as")));
}

INSTANTIATE_TEST_SUITE_P(Directions, DamagedLogTest, testing::Values(1, 2, 5));

}  // namespace
}  // namespace sluiceway::test
