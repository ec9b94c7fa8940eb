// The state in an arena's commit: the bytes of docs/zo_log.md, and the bytes that it rejects.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <initializer_list>
#include <string>
#include <vector>

#include "kernels/base/checksum.h"
#include "kernels/base/error.h"
#include "runtime/engine/zo/zo_arena.h"
#include "runtime/store/byte_stream.h"
#include "tests/support/rng.h"

namespace sluiceway::test {
namespace {

using testing::HasSubstr;
using testing::ThrowsMessage;

ArenaState some_state(Rng& rng, std::size_t run_bytes) {
  ArenaState state;
  for (std::byte& byte : state.arena.base.hash) byte = static_cast<std::byte>(rng.below(256));
  for (std::byte& byte : state.arena.made_with) byte = static_cast<std::byte>(rng.below(256));
  state.arena.base.generation = rng.bits();
  state.arena.base.step = rng.bits();
  for (std::size_t i = 0; i < run_bytes; ++i) {
    state.run.push_back(static_cast<std::byte>(rng.below(256)));
  }
  return state;
}

TEST(ArenaStateTest, ComesBack) {
  Rng rng(20261123);
  for (const std::size_t run_bytes : std::initializer_list<std::size_t>{0, 1, 7, 1000}) {
    const ArenaState state = some_state(rng, run_bytes);
    const std::vector<std::byte> bytes = encode(state);
    EXPECT_EQ(bytes.size(), kArenaStateBytes + run_bytes);
    const ArenaState found = decode_arena_state(bytes);
    EXPECT_EQ(found.arena.base, state.arena.base);
    EXPECT_EQ(found.arena.made_with, state.arena.made_with);
    EXPECT_EQ(found.run, state.run);
  }
}

// Printed in docs/zo_log.md, section 6.
TEST(ArenaStateTest, HasTheBytesOfTheDocument) {
  ArenaState state;
  state.arena.base = {{std::byte{0xEF}}, 2, 1};
  state.arena.made_with = {std::byte{0xAB}};
  state.run = {std::byte{'{'}, std::byte{'}'}};
  std::string text;
  for (const std::byte byte : encode(state)) text += to_hex(std::to_integer<std::uint8_t>(byte));
  EXPECT_EQ(text,
            "534c554943455a41"
            "0100000000000000"
            "ef00000000000000"
            "0000000000000000"
            "0200000000000000"
            "0100000000000000"
            "ab00000000000000"
            "0000000000000000"
            "0200000000000000"
            "7b7d"
            "ecc6395200c25959");
}

TEST(ArenaStateTest, EveryFlippedBitAndEveryLengthShows) {
  Rng rng(20261124);
  std::vector<std::byte> bytes = encode(some_state(rng, 13));
  for (std::byte& byte : bytes) {
    for (int bit = 0; bit < 8; ++bit) {
      byte ^= static_cast<std::byte>(1 << bit);
      EXPECT_THROW(decode_arena_state(bytes), Error);
      byte ^= static_cast<std::byte>(1 << bit);
    }
  }
  for (std::size_t size = 0; size < bytes.size(); ++size) {
    EXPECT_THROW(decode_arena_state(std::span(bytes).first(size)), Corrupt);
  }
  bytes.push_back(std::byte{0});
  EXPECT_THROW(decode_arena_state(bytes), Corrupt);
}

TEST(ArenaStateTest, LaterVersionIsNamed) {
  Rng rng(20261125);
  std::vector<std::byte> bytes = encode(some_state(rng, 0));
  bytes[8] = std::byte{2};
  EXPECT_THAT([&] { decode_arena_state(bytes); },
              ThrowsMessage<Unavailable>(HasSubstr("version is 2, expected 1")));
}

TEST(ArenaStateTest, CountThatIsNotThatOfTheBytesIsRefused) {
  Rng rng(20261126);
  std::vector<std::byte> bytes = encode(some_state(rng, 5));
  bytes.resize(bytes.size() - 8);
  bytes[64] = std::byte{6};
  ByteWriter sum;
  sum.put(checksum64(bytes));
  bytes.insert(bytes.end(), sum.bytes().begin(), sum.bytes().end());
  EXPECT_THAT([&] { decode_arena_state(bytes); },
              ThrowsMessage<Corrupt>(HasSubstr("has 5 bytes of the run, expected 6")));
}

}  // namespace
}  // namespace sluiceway::test
