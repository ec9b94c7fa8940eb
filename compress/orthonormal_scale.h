// The factor that turns a core update with elements of size 1 into a weight update of size 1 if P
// and Q have orthonormal columns: 1 / sqrt(dm dn / (m n)), the 1/f of docs/algorithm.md section 4.
#pragma once

#include <cmath>

#include "compress/projector.h"

namespace sluiceway {

inline float orthonormal_scale(const ProjectorDims& dims) noexcept {
  const double kept = static_cast<double>(dims.dm) / static_cast<double>(dims.m) *
                      static_cast<double>(dims.dn) / static_cast<double>(dims.n);
  return static_cast<float>(1 / std::sqrt(kept));
}

}  // namespace sluiceway
