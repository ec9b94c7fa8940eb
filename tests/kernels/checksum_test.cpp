// Checksum against the values that the xxHash project publishes, and against itself in pieces.
#include "kernels/base/checksum.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <initializer_list>
#include <string>
#include <vector>

namespace sluiceway::test {
namespace {

std::vector<std::byte> some_bytes(std::size_t count) {
  std::vector<std::byte> bytes(count);
  std::uint32_t state = 2463534242;
  for (std::byte& byte : bytes) {
    state = state * 1664525 + 1013904223;
    byte = static_cast<std::byte>(state >> 24);
  }
  return bytes;
}

std::string checksum_of(std::span<const std::byte> bytes, std::size_t piece) {
  Checksum checksum;
  for (std::size_t at = 0; at < bytes.size(); at += piece) {
    checksum.update(bytes.subspan(at, std::min(piece, bytes.size() - at)));
  }
  return checksum.hex();
}

TEST(ChecksumTest, NothingHasThePublishedValue) {
  EXPECT_EQ(Checksum().hex(), "99aa06d3014798d86001c324468d497f");
}

TEST(ChecksumTest, ValueDoesNotDependOnThePieces) {
  for (const std::size_t count :
       std::initializer_list<std::size_t>{1, 15, 17, 129, 241, 1025, 70001}) {
    const std::vector<std::byte> bytes = some_bytes(count);
    const std::string whole = checksum_of(bytes, count);
    for (const std::size_t piece : std::initializer_list<std::size_t>{1, 7, 64, 4096}) {
      EXPECT_EQ(checksum_of(bytes, piece), whole) << count << " bytes in pieces of " << piece;
    }
  }
}

TEST(ChecksumTest, EveryFlippedBitShows) {
  std::vector<std::byte> bytes = some_bytes(331);
  const std::string whole = checksum_of(bytes, bytes.size());
  for (std::byte& byte : bytes) {
    for (int bit = 0; bit < 8; ++bit) {
      byte ^= static_cast<std::byte>(1 << bit);
      EXPECT_NE(checksum_of(bytes, bytes.size()), whole);
      byte ^= static_cast<std::byte>(1 << bit);
    }
  }
}

TEST(ChecksumTest, ValueMayBeAskedForInBetween) {
  const std::vector<std::byte> bytes = some_bytes(1000);
  Checksum checksum;
  checksum.update(std::span(bytes).first(500));
  EXPECT_EQ(checksum.hex(), checksum_of(std::span(bytes).first(500), 500));
  checksum.update({});
  checksum.update(std::span(bytes).subspan(500));
  EXPECT_EQ(checksum.hex(), checksum_of(bytes, 1000));
}

}  // namespace
}  // namespace sluiceway::test
