// Argument checks of low_rank.h. The CPU and the CUDA code make them first.
//
// Errors: InvalidArgument, naming the function and both shapes.
#pragma once

#include "kernels/base/check.h"
#include "kernels/low_rank.h"

namespace sluiceway {

inline void check_rows_contiguous(const char* function, const char* name, const AnyMatrix& w) {
  SLUICEWAY_CHECK(w.stride == w.cols || w.rows <= 1, function, ": rows of ", name, " are ",
                  w.stride, " elements apart, expected ", w.cols, ", the number of its columns");
}

inline void check_as_w(const char* function, const char* name, const AnyMatrix& out,
                       const AnyMatrix& w) {
  SLUICEWAY_CHECK(out.rows == w.rows && out.cols == w.cols, function, ": ", name, " is ", out.rows,
                  " x ", out.cols, ", expected ", w.rows, " x ", w.cols, ", the shape of w");
  check_rows_contiguous(function, name, out);
}

inline void check_factors(const char* function, const char* name, const LowRank& product,
                          const AnyMatrix& w) {
  const auto& [left, right] = product;
  if (left.rows == 0 && right.rows == 0) return;
  SLUICEWAY_CHECK(left.rows == right.rows && left.cols == w.rows && right.cols == w.cols, function,
                  ": factors of ", name, " are ", left.rows, " x ", left.cols, " and ", right.rows,
                  " x ", right.cols, ", expected k x ", w.rows, " and k x ", w.cols, " for w of ",
                  w.rows, " x ", w.cols);
}

inline void check_low_rank(const char* function, const AnyMatrix& w, const LowRank& pending) {
  check_rows_contiguous(function, "w", w);
  check_factors(function, "pending", pending, w);
}

inline void check_neighbours(const char* function, const AnyMatrix& w, const AnyMatrix& plus,
                             const AnyMatrix& minus, const LowRank& direction) {
  check_as_w(function, "plus", plus, w);
  check_as_w(function, "minus", minus, w);
  SLUICEWAY_CHECK(plus.dtype == minus.dtype, function, ": minus is ", to_string(minus.dtype),
                  ", expected ", to_string(plus.dtype), ", the type of plus");
  check_factors(function, "direction", direction, w);
}

}  // namespace sluiceway
