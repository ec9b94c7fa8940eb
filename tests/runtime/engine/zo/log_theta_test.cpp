// LogTheta against element-by-element sums: more updates than one call takes, any split.
#include "runtime/engine/zo/log_theta.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <initializer_list>
#include <vector>

#include "kernels/base/error.h"
#include "kernels/perturb.h"
#include "tests/support/arena_run.h"

namespace sluiceway::test {
namespace {

using testing::HasSubstr;
using testing::ThrowsMessage;

class LogThetaTest : public testing::Test {
 protected:
  ScalarLog new_log(std::uint64_t steps) {
    ScalarLog log =
        ScalarLog::create(path.str(), shape, {}, {.sync_interval = std::chrono::hours(1)});
    append_steps(log, steps);
    return log;
  }

  ScratchPath path{memory_folder()};
  LogShape shape = arena_log_shape(3);
};

TEST_F(LogThetaTest, MoreUpdatesThanOneCallTakes) {
  // With 3 per step: 1,023, 1,026, 2,046, 2,049.
  const ScalarLog log = new_log(683);
  for (const std::uint64_t steps : std::initializer_list<std::uint64_t>{341, 342, 682, 683}) {
    for (const DType dtype : {DType::kF32, DType::kF16, DType::kBF16}) {
      const std::vector<ArenaWeight> weights{{"w", 131, dtype, 0}};
      const WeightBytes base = random_bytes(weights, steps);
      std::vector<std::byte> bytes = base[0];
      LogTheta(log, steps, weights).apply(weights[0], 0, bytes);
      EXPECT_EQ(bytes, ReferenceTheta(shape, 0, steps).of(weights[0], base[0], true))
          << steps << " steps, " << to_string(dtype);
    }
  }
}

TEST_F(LogThetaTest, AnySplitHasTheSameBits) {
  const ScalarLog log = new_log(350);
  // More than the 16,384 elements that are summed at once.
  const std::vector<ArenaWeight> weights{{"w", 40'001, DType::kBF16, 1}};
  const WeightBytes base = random_bytes(weights, 7);
  const LogTheta theta(log, 350, weights);
  std::vector<std::byte> whole = base[0];
  theta.apply(weights[0], 0, whole);
  EXPECT_NE(whole, base[0]);
  Rng rng(20261123);
  for (int i = 0; i < 3; ++i) {
    std::vector<std::byte> split = base[0];
    for (std::size_t at = 0; at < split.size();) {
      const std::size_t bytes =
          std::min(split.size() - at, 2 * static_cast<std::size_t>(1 + rng.below(30'000)));
      theta.apply(weights[0], at / 2, std::span(split).subspan(at, bytes));
      at += bytes;
    }
    EXPECT_EQ(split, whole);
  }
}

TEST_F(LogThetaTest, BaseStepAndWeightsOfNoGroupStayAsTheyAre) {
  const ScalarLog log = new_log(2);
  const std::vector<ArenaWeight> weights{{"w", 9, DType::kBF16, 0},
                                         {"f", 9, DType::kBF16, ArenaWeight::kUntrained}};
  EXPECT_TRUE(LogTheta(log, 0, weights).is_base(weights[0]));
  const LogTheta theta(log, 2, weights);
  EXPECT_FALSE(theta.is_base(weights[0]));
  EXPECT_TRUE(theta.is_base(weights[1]));
  const WeightBytes base = random_bytes(weights, 3);
  std::vector<std::byte> bytes = base[1];
  theta.apply(weights[1], 0, bytes);
  EXPECT_EQ(bytes, base[1]);
}

TEST_F(LogThetaTest, RefusesLogsThatItDoesNotUnderstand) {
  const std::vector<ArenaWeight> weights{{"w", 9, DType::kBF16, 2}};
  const auto refused = [&](const char* why) {
    const ScratchPath other{memory_folder()};
    const ScalarLog log = ScalarLog::create(other.str(), shape, {});
    EXPECT_THAT([&] { LogTheta(log, 0, weights); }, ThrowsMessage<InvalidArgument>(HasSubstr(why)));
  };
  refused("w is of group 2, expected a number below the log's 2");
  shape.groups = 3;
  shape.noise.family = 3;
  refused("the log's noise is family 3 of rank 0, expected elementwise noise of a family up to 2");
  shape.noise = {0, 4, 50};
  refused("of rank 4");
  shape.noise = {};
  shape.records_seeds = true;
  refused("records seeds");
}

}  // namespace
}  // namespace sluiceway::test
