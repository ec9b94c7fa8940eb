// A matrix of roots as the product of a row and a column: what divides an update by a second moment
// that is kept as the means of its rows and columns [Adafactor, arXiv 1804.04235].
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "kernels/base/check.h"

namespace sluiceway {

struct FactoredRoots {  // sqrt(V_ij) = row[i] * col[j]
  std::span<const float> row;
  std::span<const float> col;
  float eps = 0;
};

inline void check_roots(const char* function, const FactoredRoots& roots, std::int64_t m,
                        std::int64_t n) {
  SLUICEWAY_CHECK(roots.row.size() == static_cast<std::size_t>(m) &&
                      roots.col.size() == static_cast<std::size_t>(n),
                  function, ": roots are ", roots.row.size(), "x", roots.col.size(), ", expected ",
                  m, "x", n);
}

}  // namespace sluiceway
