// Header and entries of a scalar log are read back unchanged, and no other bytes are accepted.
#include "runtime/engine/zo/log_format.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <string>
#include <vector>

#include "kernels/base/checksum.h"
#include "runtime/store/byte_stream.h"
#include "tests/support/logged_run.h"
#include "tests/support/rng.h"

namespace sluiceway::test {
namespace {

using testing::HasSubstr;
using testing::ThrowsMessage;

LogHeader random_header(Rng& rng, std::uint32_t directions) {
  LogHeader header{{}, random_shape(rng, directions), random_base(rng, rng.bits(), rng.bits())};
  for (std::byte& byte : header.id) byte = static_cast<std::byte>(rng.below(256));
  return header;
}

std::vector<LogEntry> some_entries(Rng& rng, const LogShape& shape) {
  return {update_entry(shape, rng.bits()), BaseEntry{random_base(rng, rng.bits(), rng.bits())},
          ReturnEntry{rng.bits(), rng.bits()}};
}

// Seals a header as a writer of another version, or with other fields, would.
std::vector<std::byte> resealed(std::vector<std::byte> header) {
  ByteWriter sum;
  sum.put(checksum64(std::span(header).first(kLogHeaderBytes - 8)));
  std::ranges::copy(sum.bytes(), header.end() - 8);
  return header;
}

class LogFormatTest : public testing::TestWithParam<std::uint32_t> {};

TEST_P(LogFormatTest, HeaderAndEntriesComeBack) {
  Rng rng(20261123 + GetParam());
  for (int i = 0; i < 50; ++i) {
    const LogHeader header = random_header(rng, GetParam());
    EXPECT_EQ(encode(header).size(), kLogHeaderBytes);
    EXPECT_EQ(decode_log_header(encode(header)), header);
    for (const LogEntry& entry : some_entries(rng, header.shape)) {
      const std::uint64_t number = rng.bits();
      const std::vector<std::byte> bytes = encode(entry, header, number);
      EXPECT_EQ(bytes.size(), entry_bytes(header.shape));
      EXPECT_EQ(bytes.size() % 8, 0U);
      EXPECT_EQ(decode_log_entry(bytes, header, number), entry);
    }
  }
}

TEST_P(LogFormatTest, EveryFlippedBitIsSeen) {
  Rng rng(31 + GetParam());
  const LogHeader header = random_header(rng, GetParam());
  std::vector<std::byte> bytes = encode(header);
  const auto flip = [&](std::size_t bit) {
    bytes[bit / 8] ^= static_cast<std::byte>(1U << (bit % 8));
  };
  for (std::size_t bit = 0; bit < 8 * bytes.size(); ++bit) {
    flip(bit);
    EXPECT_THROW(decode_log_header(bytes), Corrupt) << bit;
    flip(bit);
  }
  EXPECT_EQ(decode_log_header(bytes), header);
  for (const LogEntry& entry : some_entries(rng, header.shape)) {
    bytes = encode(entry, header, 5);
    for (std::size_t bit = 0; bit < 8 * bytes.size(); ++bit) {
      flip(bit);
      EXPECT_THROW(decode_log_entry(bytes, header, 5), Corrupt) << bit;
      flip(bit);
    }
    EXPECT_EQ(decode_log_entry(bytes, header, 5), entry);
  }
}

TEST_P(LogFormatTest, WhatEndsEarlyIsRefused) {
  Rng rng(77 + GetParam());
  const LogHeader header = random_header(rng, GetParam());
  std::vector<std::byte> bytes = encode(header);
  for (std::size_t size = 0; size < bytes.size(); ++size) {
    EXPECT_THROW(decode_log_header(std::span(bytes).first(size)), Corrupt) << size;
  }
  bytes = encode(update_entry(header.shape, 3), header, 0);
  for (std::size_t size = 0; size < bytes.size(); ++size) {
    EXPECT_THROW(decode_log_entry(std::span(bytes).first(size), header, 0), Corrupt) << size;
  }
}

TEST_P(LogFormatTest, EntryOfAnotherPlaceOrLogIsRefused) {
  Rng rng(3 + GetParam());
  const LogHeader header = random_header(rng, GetParam());
  LogHeader other = header;
  other.id[15] ^= std::byte{1};
  const std::vector<std::byte> bytes = encode(update_entry(header.shape, 9), header, 9);
  EXPECT_THROW(decode_log_entry(bytes, header, 8), Corrupt);
  EXPECT_THROW(decode_log_entry(bytes, other, 9), Corrupt);
}

INSTANTIATE_TEST_SUITE_P(Directions, LogFormatTest, testing::Values(1, 2, 3, 5, 8));

TEST(LogHeaderTest, VersionOfTheFutureIsNamed) {
  Rng rng(1);
  std::vector<std::byte> bytes = encode(random_header(rng, 1));
  bytes[8] = std::byte{7};
  EXPECT_THAT([&] { decode_log_header(resealed(bytes)); },
              ThrowsMessage<Unavailable>(HasSubstr("version is 7, expected 1")));
}

TEST(LogHeaderTest, SizesThatNoLogHasAreRefused) {
  Rng rng(2);
  const std::vector<std::byte> bytes = encode(random_header(rng, 3));
  const auto with = [&](std::size_t at, std::uint8_t value) {
    std::vector<std::byte> changed = bytes;
    changed[at] = static_cast<std::byte>(value);
    return resealed(changed);
  };
  constexpr std::size_t kEntryBytesAt = 12, kGroupsAt = 84, kDirectionsAt = 88, kSeedsAt = 92;
  EXPECT_EQ(decode_log_header(with(kDirectionsAt, 3)).shape.directions, 3U);
  EXPECT_THAT([&] { decode_log_header(with(kEntryBytesAt, 17)); },
              ThrowsMessage<Corrupt>(HasSubstr("has entries of 17 bytes")));
  EXPECT_THAT([&] { decode_log_header(with(kGroupsAt, 0)); },
              ThrowsMessage<Corrupt>(HasSubstr("has 0 parameter groups, expected 1 to 1024")));
  EXPECT_THAT([&] { decode_log_header(with(kDirectionsAt + 2, 1)); },
              ThrowsMessage<Corrupt>(HasSubstr("has 65539 directions, expected 1 to 1024")));
  EXPECT_THAT([&] { decode_log_header(with(kSeedsAt, 2)); },
              ThrowsMessage<Corrupt>(HasSubstr("seeds 2")));
}

TEST(LogEntryTest, IsSixtyFourBytesWithOneDirectionAndTwoGroups) {
  EXPECT_EQ(entry_bytes({.groups = 2, .directions = 1}), 64U);
}

std::string hex_of(const std::vector<std::byte>& bytes) {
  std::string text;
  for (std::size_t i = 0; i < bytes.size(); ++i) {
    if (i > 0 && i % 8 == 0) text += i % 32 == 0 ? "\n" : " ";
    text += to_hex(std::to_integer<std::uint8_t>(bytes[i]));
  }
  return text;
}

// The example of docs/zo_log.md. If these bytes change, the version must change.
TEST(LogEntryTest, BytesAreThoseOfVersionOne) {
  LogHeader header{{}, {.run_seed = 7, .groups = 2, .directions = 1}, {}};
  header.shape.noise.family = 1;
  header.id[0] = std::byte{0xab};
  header.first.hash[0] = std::byte{0xcd};
  const UpdateEntry update{0, false, {}, {0.5F}, {{0.125, 0.9375}, {0.125, 1}}};
  EXPECT_EQ(hex_of(encode(header)),
            R"(534c554943455a4f 0100000040000000 ab00000000000000 0000000000000000
cd00000000000000 0000000000000000 0000000000000000 0000000000000000
0700000000000000 0100000000000000 0000000002000000 0100000000000000
0000000000000000 0000000000000000 0000000000000000 6f7d267b0b2ec503)");
  EXPECT_EQ(hex_of(encode(update, header, 0)),
            R"(0100000000000000 0000000000000000 0000003f00000000 0000c03f00000000
0000ee3f00000000 0000c03f00000000 0000f03f00000000 c455be8901536347)");
  EXPECT_EQ(hex_of(encode(BaseEntry{{{std::byte{0xef}}, 2, 1}}, header, 1)),
            R"(0200000000000000 0100000000000000 0200000000000000 ef00000000000000
0000000000000000 0000000000000000 0000000000000000 cae6ffa54b399b4b)");
  EXPECT_EQ(hex_of(encode(ReturnEntry{0, 2}, header, 2)),
            R"(0300000000000000 0000000000000000 0200000000000000 0000000000000000
0000000000000000 0000000000000000 0000000000000000 8f0a80e8b76972c8)");
}

}  // namespace
}  // namespace sluiceway::test
