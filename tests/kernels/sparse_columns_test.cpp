// sparse_columns(): the same projector by column, and the arguments it rejects.
#include "kernels/sparse_columns.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "kernels/base/error.h"
#include "tests/support/projector_fixture.h"

namespace sluiceway::test {
namespace {

using testing::HasSubstr;
using testing::ThrowsMessage;

TEST(SparseColumnsTest, ColumnsHoldTheSameEntriesInAscendingRows) {
  Rng rng{7};
  for (const std::int64_t cols : {1, 2, 29, 300}) {
    const OwnedSparseRows p = random_sparse(rng, 61, cols, 1 + cols / 10);
    const SparseColumns by_column = p.columns();
    MatrixF64 from_columns(61, cols);
    for (std::int64_t c = 0; c < cols; ++c) {
      for (std::int32_t e = by_column.offset[c]; e < by_column.offset[c + 1]; ++e) {
        from_columns(by_column.row[e], c) = static_cast<double>(by_column.value[e]);
        const bool first = e == by_column.offset[c];
        EXPECT_TRUE(first || by_column.row[e - 1] < by_column.row[e]);
      }
    }
    EXPECT_EQ(by_column.offset[cols], static_cast<std::int32_t>(p.index.size()));
    EXPECT_EQ(from_columns, dense(p.view()));
  }
}

TEST(SparseColumnsTest, EmptyProjectorHasOnlyOffsets) {
  std::vector<std::int32_t> offset(4, -1);
  const SparseRows empty{nullptr, nullptr, 0, 3, 2};
  sparse_columns(empty, offset, {}, {});
  EXPECT_EQ(offset, std::vector<std::int32_t>(4, 0));
}

TEST(SparseColumnsTest, RejectsAnIndexOutsideTheColumnsAndWritesNothing) {
  const std::vector<std::int32_t> index{0, 2, 3};
  const std::vector<float> value{1, 1, 1};
  std::vector<std::int32_t> offset(4, -1), row(3, -1);
  std::vector<float> column_value(3, -1);
  const SparseRows p{index.data(), value.data(), 3, 3, 1};
  EXPECT_THAT([&] { sparse_columns(p, offset, row, column_value); },
              ThrowsMessage<InvalidArgument>(HasSubstr("row 2 has index 3, expected 0 to 2")));
  EXPECT_EQ(offset, std::vector<std::int32_t>(4, -1));
}

TEST(SparseColumnsTest, RejectsArraysOfTheWrongSize) {
  const std::vector<std::int32_t> index{0, 1, 2};
  const std::vector<float> value{1, 1, 1};
  std::vector<std::int32_t> offset(3), row(3);
  std::vector<float> column_value(3);
  const SparseRows p{index.data(), value.data(), 3, 3, 1};
  EXPECT_THAT([&] { sparse_columns(p, offset, row, column_value); },
              ThrowsMessage<InvalidArgument>(HasSubstr("offset has 3 elements, expected 4")));
}

}  // namespace
}  // namespace sluiceway::test
