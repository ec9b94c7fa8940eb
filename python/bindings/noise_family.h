// Names of the distributions that noise is drawn from.
#pragma once

#include <string>

#include "kernels/base/check.h"
#include "kernels/noise.h"

namespace sluiceway {

inline NoiseFamily parse_family(const std::string& name) {
  for (const NoiseFamily family :
       {NoiseFamily::kRademacher, NoiseFamily::kByteQuantile, NoiseFamily::kGaussian}) {
    if (to_string(family) == name) return family;
  }
  throw InvalidArgument(
      concat("family: is \"", name, "\", expected rademacher, byte_quantile or gaussian"));
}

}  // namespace sluiceway
