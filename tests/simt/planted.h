// Launches a kernel with or without a planted bug, under many seeds, and returns what the machine
// found.
#pragma once

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "kernels/base/error.h"
#include "tests/support/backend.h"
#include "tests/support/simt/simt.h"

namespace sluiceway::test {

// Returns the first finding of one run, which the stream's exception must carry; "" if none.
inline std::string finding_of(const std::function<void(StreamRef)>& work) {
  std::string thrown;
  try {
    run_on_stream(DeviceId::cuda(0), work);
  } catch (const CudaError& error) {
    thrown = error.what();
  }
  const std::vector<std::string> findings = simt::take_findings();
  if (findings.empty()) return thrown;
  EXPECT_THAT(thrown, testing::HasSubstr(findings.front()));
  return findings.front();
}

class SimtTest : public testing::Test {
 protected:
  static constexpr int kSeeds = 5;

  // Kernels of these tests are in no list.
  std::optional<simt::UnlistedKernels> unlisted_{std::in_place};

  void TearDown() override {
    EXPECT_THAT(simt::take_findings(), testing::IsEmpty());
    simt::set_seed(1);
  }

  // Checks that every seed finds the bug, with a text that names this kernel and satisfies
  // `matcher`.
  static void expect_found(const std::string& kernel, const testing::Matcher<std::string>& matcher,
                           const std::function<void(StreamRef)>& work) {
    for (int seed = 1; seed <= kSeeds; ++seed) {
      simt::set_seed(static_cast<std::uint64_t>(seed));
      const std::string finding = finding_of(work);
      EXPECT_THAT(finding, testing::AllOf(testing::HasSubstr("simt: kernel "),
                                          testing::HasSubstr(kernel), testing::HasSubstr("block ("),
                                          testing::HasSubstr("thread ("), matcher))
          << "seed " << seed;
    }
  }

  static void expect_nothing(const std::function<void(StreamRef)>& work) {
    for (int seed = 1; seed <= kSeeds; ++seed) {
      simt::set_seed(static_cast<std::uint64_t>(seed));
      EXPECT_EQ(finding_of(work), "") << "seed " << seed;
    }
  }
};

}  // namespace sluiceway::test
