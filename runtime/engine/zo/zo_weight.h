// The weights that the zeroth-order engine streams, and the noise that perturbs them.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "kernels/base/dtype.h"
#include "kernels/weight_form.h"

namespace sluiceway {

// One use of a weight in a forward. Uses with the same storage are one weight, with one noise.
struct ZoWeight {
  std::string name;
  std::int64_t elements = 0;
  WeightForm form = DType::kF32;  // As read from the source, and as it arrives.
  int group = 0;                  // Parameter group; see ZoUpdates.
  int module = 0;                 // Ascending. Its uses are read together, direction by direction.
  // Page-locked, for speed. While the engine lives no other code writes to it; the engine does so
  // only with masters (host_masters.h).
  const void* host = nullptr;
  bool keep = false;                   // Always on the device: norms, biases.
  int source = -1;                     // Its index in the ring's WeightSource, if `host` is null.
  std::int64_t rows = 0;               // For a matrix with low-rank noise; 0: a vector.
  std::optional<DType> computed = {};  // Type that a forward reads; none: the type of `form`.

  DType dtype() const noexcept { return form.dtype(); }
  std::uint64_t bytes() const noexcept { return form.bytes(static_cast<std::uint64_t>(elements)); }
  DType copy_dtype() const noexcept { return computed.value_or(dtype()); }
  std::uint64_t copy_bytes() const noexcept {  // As a forward reads it.
    return static_cast<std::uint64_t>(elements) * size_bytes(copy_dtype());
  }
};

// The two halves of a step.
enum class Side : std::uint8_t { kPlus, kMinus };

struct StepNoise {
  std::uint64_t seed = 0;  // Of the run.
  std::uint64_t step = 0;
  std::uint32_t purpose = 0;
  float eps = 0;
};

// The log since the base, in the order of the steps: theta = gamma (base + sum of scale z).
struct ZoUpdates {
  struct Record {
    StepNoise noise;           // Its eps is not used.
    std::vector<float> scale;  // By group; a group beyond the end has 0.
  };
  std::vector<float> gamma;     // By group; a group beyond the end has 1.
  std::vector<Record> records;  // Empty for low-rank noise (low_rank_updates.h).
};

inline float of_group(const std::vector<float>& values, int group, float otherwise) {
  const auto i = static_cast<std::size_t>(group);
  return i < values.size() ? values[i] : otherwise;
}

}  // namespace sluiceway
