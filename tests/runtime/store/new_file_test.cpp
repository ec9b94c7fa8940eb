// write_new_file(): a file is whole or absent, and never replaces another.
#include "runtime/store/new_file.h"

#include <gtest/gtest.h>

#include <cerrno>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>

#include "kernels/base/error.h"
#include "tests/support/io_back_ends.h"

namespace sluiceway::test {
namespace {

class NewFileTest : public testing::Test {
 protected:
  NewFileTest() { std::filesystem::create_directory(folder.str()); }
  static int errno_of_writing(const std::string& path, const std::string& text) {
    try {
      write_new_file(path, std::as_bytes(std::span(text)));
    } catch (const IoError& error) {
      return error.error_number();
    }
    return 0;
  }
  static std::string text_of(const std::string& path) {
    std::ifstream in(path, std::ios::binary);
    return {std::istreambuf_iterator<char>(in), {}};
  }
  std::ptrdiff_t files() const {
    return std::distance(std::filesystem::directory_iterator(folder.str()), {});
  }
  ScratchPath folder;
  std::string path = folder.str() + "/file";
};

TEST_F(NewFileTest, HasAllOfItsBytesAndNothingBesideIt) {
  EXPECT_EQ(errno_of_writing(path, std::string(100'003, 'x')), 0);
  EXPECT_EQ(text_of(path), std::string(100'003, 'x'));
  EXPECT_EQ(errno_of_writing(path + "2", ""), 0);
  EXPECT_EQ(files(), 2);
}

TEST_F(NewFileTest, NeverReplacesAFile) {
  std::ofstream(path) << "precious";
  EXPECT_EQ(errno_of_writing(path, "new"), EEXIST);
  EXPECT_EQ(text_of(path), "precious");
  EXPECT_EQ(files(), 1);
}

TEST_F(NewFileTest, WithoutItsFolderThereIsNone) {
  EXPECT_EQ(errno_of_writing(folder.str() + "/none/file", "new"), ENOENT);
  EXPECT_EQ(files(), 0);
}

TEST(RandomIdTest, IsAnotherEachTime) { EXPECT_NE(random_id(), random_id()); }

}  // namespace
}  // namespace sluiceway::test
