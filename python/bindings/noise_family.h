// Names of the distributions that noise is drawn from, and keys of it.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <tuple>
#include <utility>

#include "kernels/base/check.h"
#include "kernels/decompress.h"
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

// Seed, step, tensor and purpose; none: to nearest.
using StochasticKey =
    std::optional<std::tuple<std::uint64_t, std::uint64_t, std::uint64_t, std::uint32_t>>;

inline std::pair<Rounding, NoiseKey> rounding_of(const StochasticKey& stochastic) {
  if (!stochastic) return {Rounding::kNearest, {}};
  const auto& [seed, step, tensor, purpose] = *stochastic;
  return {Rounding::kStochastic, {seed, step, tensor, purpose}};
}

}  // namespace sluiceway
