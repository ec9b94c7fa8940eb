// Every build reads the corpus once: the fewest inputs that reach all that the fuzzer has reached.
#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <vector>

#include "runtime/store/format.h"
#include "runtime/store/new_layout.h"
#include "tests/fuzz/store_format_fuzz.h"

namespace sluiceway::test {
namespace {

std::vector<std::byte> read_file(const std::filesystem::path& path) {
  std::ifstream file(path, std::ios::binary);
  const std::vector<char> chars{std::istreambuf_iterator<char>(file), {}};
  const auto bytes = std::as_bytes(std::span(chars));
  return {bytes.begin(), bytes.end()};
}

TEST(StoreFormatCorpusTest, EveryInputIsRefusedOrComesBack) {
  int read = 0;
  for (const auto& entry : std::filesystem::directory_iterator(SLUICEWAY_CORPUS)) {
    read_any_bytes(read_file(entry.path()));
    ++read;
  }
  EXPECT_GT(read, 10);
}

TEST(StoreFormatCorpusTest, EmptyAndOneByteAreRefused) {
  read_any_bytes({});
  for (int first = 0; first < 256; ++first) {
    const std::vector<std::byte> one{static_cast<std::byte>(first)};
    read_any_bytes(one);
  }
}

}  // namespace
}  // namespace sluiceway::test
