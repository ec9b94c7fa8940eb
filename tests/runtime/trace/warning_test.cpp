// Warnings reach the handler of the process, or stderr.
#include "runtime/trace/warning.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <utility>
#include <vector>

namespace sluiceway::test {
namespace {

TEST(WarningTest, WithoutAHandlerItIsALineOfStderr) {
  testing::internal::CaptureStderr();
  warn("slower than it could be");
  EXPECT_EQ(testing::internal::GetCapturedStderr(),
            "sluiceway: warning: slower than it could be\n");
}

TEST(WarningTest, HandlerGetsTheTextUntilTheOneBeforeIsBack) {
  std::vector<std::string> seen;
  WarningHandler before =
      set_warning_handler([&](const std::string& text) { seen.push_back(text); });
  EXPECT_FALSE(before);
  warn("first");
  set_warning_handler(std::move(before));
  testing::internal::CaptureStderr();
  warn("second");
  EXPECT_EQ(testing::internal::GetCapturedStderr(), "sluiceway: warning: second\n");
  EXPECT_THAT(seen, testing::ElementsAre("first"));
}

}  // namespace
}  // namespace sluiceway::test
