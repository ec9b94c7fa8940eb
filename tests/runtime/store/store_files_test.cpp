// create_store() and open_store(): stores by the paths of their drives, and what remains after a
// failure.
#include "runtime/store/store_files.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cerrno>
#include <filesystem>
#include <fstream>
#include <stdexcept>

#include "tests/support/io_back_ends.h"

namespace sluiceway::test {
namespace {

using testing::HasSubstr;
using testing::ThrowsMessage;

class StoreFilesTest : public testing::Test {
 protected:
  static Contents contents(std::uint64_t chunks) {
    Contents contents;
    contents.regions = {{RegionKind::kState, kBlockBytes, chunks, 2}};
    contents.run_state_bytes = kBlockBytes;
    contents.spares_per_drive = 1;
    return contents;
  }
  std::unique_ptr<ChunkStore> create(std::uint64_t chunks,
                                     const ChunkStore::Progress& progress = {}) {
    return create_store(budget, {first.str(), second.str()}, contents(chunks), {1, 1}, options,
                        progress);
  }
  bool nothing_is_left() const {
    return !std::filesystem::exists(first.str()) && !std::filesystem::exists(second.str());
  }

  Budget budget = Budget::unlimited();
  OpenOptions options{
      .io = IoChoice::kPosix, .depth = 2, .busy_wait = std::chrono::milliseconds(0)};
  ScratchPath first, second;
};

TEST_F(StoreFilesTest, WhatWasMadeIsOpenedByItsPaths) {
  const StoreId id = create(5)->id();
  const auto store = open_store(budget, {first.str(), second.str()}, options);
  EXPECT_EQ(store->id(), id);
  EXPECT_EQ(store->layout().regions.at(0).chunks, 5U);
}

TEST_F(StoreFilesTest, TooLittleRoomLeavesNothing) {
  Contents large = contents(1);
  large.regions[0].chunk_bytes = std::uint64_t{1} << 40;
  EXPECT_THAT(
      [&] {
        (void)create_store(budget, {first.str(), second.str()}, large, {1, 1}, options);
      },
      ThrowsMessage<IoError>(HasSubstr("are free there")));
  EXPECT_TRUE(nothing_is_left());
}

TEST_F(StoreFilesTest, InterruptedMakingLeavesNothing) {
  const auto interrupt = [](std::uint64_t, std::uint64_t) { throw std::runtime_error("Ctrl-C"); };
  EXPECT_THAT([&] { create(5, interrupt); }, ThrowsMessage<std::runtime_error>("Ctrl-C"));
  EXPECT_TRUE(nothing_is_left());
}

TEST_F(StoreFilesTest, FileThatIsThereIsRefusedAndKept) {
  std::ofstream(second.str()) << "precious";
  try {
    create(5);
    ADD_FAILURE() << "expected a refusal";
  } catch (const IoError& error) {
    EXPECT_EQ(error.error_number(), EEXIST);
  }
  EXPECT_EQ(std::filesystem::file_size(second.str()), 8U);
  EXPECT_FALSE(std::filesystem::exists(first.str()));
}

TEST_F(StoreFilesTest, WeightsAndPathsAreAsMany) {
  EXPECT_THAT(
      [&] {
        (void)create_store(budget, {first.str()}, contents(1), {1, 1}, options);
      },
      ThrowsMessage<InvalidArgument>(HasSubstr("1 paths, expected 2")));
}

TEST_F(StoreFilesTest, RegionsAndInterfacesHaveTheNamesThatUsersWrite) {
  EXPECT_EQ(parse_region_kind("log"), RegionKind::kLog);
  EXPECT_EQ(parse_io_choice("uring"), IoChoice::kUring);
  EXPECT_THAT([] { parse_region_kind("unknown"); },
              ThrowsMessage<InvalidArgument>(HasSubstr("expected state, gradient")));
  EXPECT_THAT([] { parse_io_choice("aio"); },
              ThrowsMessage<InvalidArgument>(HasSubstr("expected auto, uring or posix")));
}

}  // namespace
}  // namespace sluiceway::test
