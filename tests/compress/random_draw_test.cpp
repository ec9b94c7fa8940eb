// Draws of projectors: distinct positions, orthonormal blocks, pure functions of their key.
#include "compress/random_draw.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <map>
#include <vector>

#include "kernels/base/error.h"

namespace sluiceway::test {
namespace {

struct SparseRow {
  std::vector<std::int32_t> index;
  std::vector<float> value;
  friend bool operator==(const SparseRow&, const SparseRow&) = default;
};

SparseRow sparse_row(const DrawKey& key, std::int64_t row, std::int64_t cols, std::size_t nnz,
                     DrawPurpose purpose = DrawPurpose::kSparseP,
                     SparseInit init = SparseInit::kSign) {
  SparseRow out{std::vector<std::int32_t>(nnz), std::vector<float>(nnz)};
  draw_sparse_row(key, purpose, row, cols, init, out.index, out.value);
  return out;
}

std::vector<float> block(const DrawKey& key, std::int64_t group, std::int64_t rows,
                         std::int64_t cols, DrawPurpose purpose = DrawPurpose::kBlockP) {
  std::vector<float> out(static_cast<std::size_t>(rows * cols));
  draw_orthonormal(key, purpose, group, rows, cols, out.data(), cols);
  return out;
}

TEST(DrawSparseRowTest, PositionsAscendAndLieInRange) {
  for (const std::int64_t cols : {1, 2, 7, 61, 1000003}) {
    for (const std::size_t nnz : {std::size_t{1}, std::size_t{4}, std::size_t{40}}) {
      if (static_cast<std::int64_t>(nnz) > cols) continue;
      for (std::int64_t row = 0; row < 50; ++row) {
        const SparseRow drawn = sparse_row({5, 0, 7}, row, cols, nnz);
        EXPECT_GE(drawn.index.front(), 0);
        EXPECT_LT(drawn.index.back(), cols);
        for (std::size_t k = 1; k < nnz; ++k) ASSERT_LT(drawn.index[k - 1], drawn.index[k]);
      }
    }
  }
}

TEST(DrawSparseRowTest, AllColumnsAreTakenWhenAllAreAskedFor) {
  EXPECT_EQ(sparse_row({5, 0, 7}, 3, 5, 5).index, (std::vector<std::int32_t>{0, 1, 2, 3, 4}));
}

TEST(DrawSparseRowTest, NormalValuesStandAtThePositionsOfSignsWithVarianceOneOverR) {
  double sum = 0, squares = 0;
  constexpr int kRows = 20000;
  for (std::int64_t row = 0; row < kRows; ++row) {
    const SparseRow signs = sparse_row({1, 0, 2}, row, 40, 3);
    const SparseRow normal =
        sparse_row({1, 0, 2}, row, 40, 3, DrawPurpose::kSparseP, SparseInit::kNormal);
    ASSERT_EQ(normal.index, signs.index);
    for (const float x : normal.value) {
      sum += x;
      squares += static_cast<double>(x) * static_cast<double>(x);
    }
  }
  const double draws = 3.0 * kRows;
  EXPECT_NEAR(sum / draws, 0, 5 * std::sqrt(1 / 3.0 / draws));
  EXPECT_NEAR(squares / draws, 1 / 3.0, 5 * std::sqrt(2.0 / 9 / draws));
}

TEST(SparseInitTest, IsReadFromItsName) {
  EXPECT_EQ(parse_sparse_init("sign"), SparseInit::kSign);
  EXPECT_EQ(parse_sparse_init("normal"), SparseInit::kNormal);
  EXPECT_THROW(parse_sparse_init("uniform"), InvalidArgument);
}

TEST(DrawSparseRowTest, EveryPairOfColumnsIsEquallyLikely) {
  std::map<std::pair<int, int>, int> seen;
  constexpr int kRows = 20000;
  for (std::int64_t row = 0; row < kRows; ++row) {
    const SparseRow drawn = sparse_row({1, 0, 2}, row, 5, 2);
    ++seen[{drawn.index[0], drawn.index[1]}];
  }
  ASSERT_EQ(seen.size(), 10U);
  for (const auto& [pair, count] : seen) {  // A tenth of the rows; standard deviation 42.
    EXPECT_NEAR(count, 2000, 5 * 42) << pair.first << "," << pair.second;
  }
}

TEST(DrawSparseRowTest, ValuesArePlusOrMinusOneOverRootOfNnz) {
  int positive = 0;
  for (std::int64_t row = 0; row < 1000; ++row) {
    for (const float x : sparse_row({1, 0, 2}, row, 99, 4).value) {
      ASSERT_EQ(std::abs(x), 0.5F);
      positive += x > 0 ? 1 : 0;
    }
  }
  EXPECT_NEAR(positive, 2000, 5 * 32);
}

TEST(DrawSparseRowTest, EachPartOfTheKeyMatters) {
  const DrawKey key{1, 2, 3};
  const SparseRow drawn = sparse_row(key, 4, 1009, 8);
  EXPECT_EQ(drawn, sparse_row(key, 4, 1009, 8));
  EXPECT_NE(drawn, sparse_row({2, 2, 3}, 4, 1009, 8));
  EXPECT_NE(drawn, sparse_row({1, 3, 3}, 4, 1009, 8));
  EXPECT_NE(drawn, sparse_row({1, 2, 4}, 4, 1009, 8));
  EXPECT_NE(drawn, sparse_row(key, 5, 1009, 8));
  EXPECT_NE(drawn, sparse_row(key, 4, 1009, 8, DrawPurpose::kSparseQ));
}

TEST(DrawOrthonormalTest, ColumnsAreOrthonormalToOneInAMillion) {
  for (const std::int64_t rows : {1, 2, 3, 31, 32, 61}) {
    for (const std::int64_t cols : {std::int64_t{1}, (rows + 3) / 4, rows}) {
      const std::vector<float> x = block({1, 0, 2}, 9, rows, cols);
      for (std::int64_t a = 0; a < cols; ++a) {
        for (std::int64_t b = 0; b < cols; ++b) {
          double dot = 0;
          for (std::int64_t i = 0; i < rows; ++i) {
            dot += static_cast<double>(x[static_cast<std::size_t>(i * cols + a)]) *
                   static_cast<double>(x[static_cast<std::size_t>(i * cols + b)]);
          }
          ASSERT_NEAR(dot, a == b ? 1 : 0, 1e-6) << rows << "x" << cols;
        }
      }
    }
  }
}

TEST(DrawOrthonormalTest, EachPartOfTheKeyMatters) {
  const DrawKey key{1, 2, 3};
  const std::vector<float> drawn = block(key, 4, 32, 8);
  EXPECT_EQ(drawn, block(key, 4, 32, 8));
  EXPECT_NE(drawn, block({2, 2, 3}, 4, 32, 8));
  EXPECT_NE(drawn, block({1, 3, 3}, 4, 32, 8));
  EXPECT_NE(drawn, block({1, 2, 4}, 4, 32, 8));
  EXPECT_NE(drawn, block(key, 5, 32, 8));
  EXPECT_NE(drawn, block(key, 4, 32, 8, DrawPurpose::kBlockQ));
}

TEST(DrawOrthonormalTest, NoDirectionIsPreferred) {
  double sum = 0, square = 0;
  constexpr std::int64_t kGroups = 4000;
  for (std::int64_t group = 0; group < kGroups; ++group) {
    const double x = block({1, 0, 2}, group, 4, 1)[0];
    sum += x;
    square += x * x;
  }
  EXPECT_NEAR(sum / kGroups, 0.0, 5 * 0.5 / std::sqrt(kGroups));
  EXPECT_NEAR(square / kGroups, 0.25, 5 * 0.22 / std::sqrt(kGroups));
}

}  // namespace
}  // namespace sluiceway::test
