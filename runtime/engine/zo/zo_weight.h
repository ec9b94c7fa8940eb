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

// One use of a weight in a forward; those with the same storage are one weight, of one noise.
struct ZoWeight {
  std::string name;
  std::int64_t elements = 0;
  WeightForm form = DType::kF32;  // As the source reads it, and as it arrives.
  int group = 0;                  // Of the parameters; see ZoUpdates.
  int module = 0;  // Ascends. Its uses are read together, in one direction after another.
  // Page-locked, to be fast. While the engine lives nobody else writes to it, and the engine does
  // where it has masters (host_masters.h) alone.
  const void* host = nullptr;
  bool keep = false;      // On the device whatever the room: norms, biases.
  int source = -1;        // Its index in the ring's WeightSource, where `host` is null.
  std::int64_t rows = 0;  // Of a matrix, for noise of low rank; 0: a vector.
  std::optional<DType> computed = {};  // Type of what a forward reads; that of `form` if nothing.

  DType dtype() const noexcept { return form.dtype(); }
  std::uint64_t bytes() const noexcept { return form.bytes(static_cast<std::uint64_t>(elements)); }
  DType copy_dtype() const noexcept { return computed.value_or(dtype()); }
  std::uint64_t copy_bytes() const noexcept {  // Of what a forward reads.
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

// The log since the base, theta = gamma (base + sum of scale z), in the order of the steps.
struct ZoUpdates {
  struct Record {
    StepNoise noise;           // Its eps plays no part.
    std::vector<float> scale;  // By group; a group beyond the end has 0.
  };
  std::vector<float> gamma;     // By group; a group beyond the end has 1.
  std::vector<Record> records;  // None where the noise is of low rank (low_rank_updates.h).
};

inline float of_group(const std::vector<float>& values, int group, float otherwise) {
  const auto i = static_cast<std::size_t>(group);
  return i < values.size() ? values[i] : otherwise;
}

}  // namespace sluiceway
