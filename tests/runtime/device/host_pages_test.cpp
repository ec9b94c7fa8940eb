// HostPages: where pages start, that they are zero, and how many are huge.
#include "runtime/device/host_pages.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstring>
#include <fstream>
#include <string>
#include <utility>
#include <vector>

#include "kernels/base/error.h"

namespace sluiceway::test {
namespace {

using testing::HasSubstr;
using testing::ThrowsMessage;

constexpr std::size_t kBytes = 3 * kHugePageBytes + 5000;

// Returns whether the system provides huge pages on request.
bool system_has_huge_pages() {
  std::string choices;
  std::getline(std::ifstream("/sys/kernel/mm/transparent_hugepage/enabled"), choices);
  return choices.find("[always]") != std::string::npos ||
         choices.find("[madvise]") != std::string::npos;
}

class HostPagesTest : public testing::TestWithParam<Pages> {};

TEST_P(HostPagesTest, StartOnAPageOfTheirKindAsZero) {
  const HostPages pages(kBytes, GetParam());
  EXPECT_EQ(reinterpret_cast<std::uintptr_t>(pages.get()) % page_bytes(GetParam()), 0U);
  EXPECT_EQ(pages.size() % page_bytes(GetParam()), 0U);
  EXPECT_LT(pages.size() - kBytes, page_bytes(GetParam()));
  auto* const bytes = static_cast<char*>(pages.get());
  EXPECT_EQ(std::string(bytes, pages.size()), std::string(pages.size(), '\0'));
  std::memset(bytes, 0x5A, pages.size());
}

TEST_P(HostPagesTest, ReleasedPagesAreUnmappedByTheSameArguments) {
  void* first = nullptr;
  {
    HostPages pages(kBytes, GetParam());
    first = pages.release();
  }
  std::memset(first, 1, kBytes);  // Still there.
  unmap_pages(first, kBytes, GetParam());
  EXPECT_EQ(huge_bytes(first, kBytes), 0U);
}

TEST_P(HostPagesTest, RefusalNamesTheBytes) {
  constexpr std::size_t kTooMuch = std::size_t{1} << 60;
  EXPECT_THAT([] { HostPages(kTooMuch, GetParam()); },
              ThrowsMessage<OutOfMemory>(HasSubstr(std::to_string(kTooMuch) + " bytes")));
  EXPECT_THROW(HostPages(SIZE_MAX, GetParam()), OutOfMemory);
}

INSTANTIATE_TEST_SUITE_P(Kinds, HostPagesTest, testing::Values(Pages::kOrdinary, Pages::kHuge),
                         [](const auto& each) {
                           return each.param == Pages::kHuge ? "Huge" : "Ordinary";
                         });

TEST(HugeBytesTest, CountsHugePagesOfTheRangeOnly) {
  const HostPages pages(kBytes, Pages::kHuge);
  const std::size_t all = huge_bytes(pages.get(), pages.size());
  RecordProperty("huge_bytes", std::to_string(all));
  EXPECT_LE(all, pages.size());
  EXPECT_EQ(all % kHugePageBytes, 0U);
  EXPECT_TRUE(all > 0 || !system_has_huge_pages());
  EXPECT_LE(huge_bytes(pages.get(), kHugePageBytes), kHugePageBytes);
  EXPECT_EQ(huge_bytes(pages.get(), 0), 0U);
}

TEST(HugeBytesTest, IsZeroForMemoryThatNobodyMapped) {
  EXPECT_EQ(huge_bytes(nullptr, kHugePageBytes), 0U);
}

}  // namespace
}  // namespace sluiceway::test
