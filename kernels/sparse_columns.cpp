#include "kernels/sparse_columns.h"

#include <algorithm>
#include <limits>

#include "kernels/base/check.h"

namespace sluiceway {
namespace {

void check_sizes(const SparseRows& q, std::size_t offsets, std::size_t rows, std::size_t values) {
  const std::int64_t nonzeros = q.rows * q.nnz;
  SLUICEWAY_CHECK(q.rows >= 0 && q.cols >= 0 && q.nnz >= 0, "sparse_columns: q is ", q.rows, "x",
                  q.cols, " with ", q.nnz, " nonzeros a row, expected no negative size");
  SLUICEWAY_CHECK(nonzeros <= std::numeric_limits<std::int32_t>::max(), "sparse_columns: q has ",
                  nonzeros, " nonzeros, expected at most 2147483647");
  SLUICEWAY_CHECK(offsets == static_cast<std::size_t>(q.cols) + 1, "sparse_columns: offset has ",
                  offsets, " elements, expected ", q.cols + 1);
  SLUICEWAY_CHECK(rows == static_cast<std::size_t>(nonzeros) && rows == values,
                  "sparse_columns: row has ", rows, " and value ", values, " elements, expected ",
                  nonzeros, " each");
  for (std::int64_t e = 0; e < nonzeros; ++e) {
    SLUICEWAY_CHECK(q.index[e] >= 0 && q.index[e] < q.cols, "sparse_columns: row ", e / q.nnz,
                    " has index ", q.index[e], ", expected 0 to ", q.cols - 1);
  }
}

}  // namespace

SparseColumns sparse_columns(const SparseRows& q, std::span<std::int32_t> offset,
                             std::span<std::int32_t> row, std::span<float> value) {
  check_sizes(q, offset.size(), row.size(), value.size());
  const std::int64_t nonzeros = q.rows * q.nnz;
  std::int32_t* const next = offset.data() + 1;  // next[c]: the place of column c's next nonzero.
  std::fill(offset.begin(), offset.end(), 0);
  // Counting sort. The count of a column is kept one place after it, so that placing turns starts
  // into ends, which are the starts of the next columns.
  for (std::int64_t e = 0; e < nonzeros; ++e) {
    if (q.index[e] + 1 < q.cols) ++next[q.index[e] + 1];
  }
  for (std::int64_t c = 1; c < q.cols; ++c) next[c] += next[c - 1];
  for (std::int64_t e = 0; e < nonzeros; ++e) {
    const auto at = static_cast<std::size_t>(next[q.index[e]]++);
    row[at] = static_cast<std::int32_t>(e / q.nnz);
    value[at] = q.value[e];
  }
  return {offset.data(), row.data(), value.data(), q.rows, q.cols, nonzeros};
}

}  // namespace sluiceway
