// The names that configs and options have for the types of numbers.
#pragma once

#include <string>

#include "kernels/base/check.h"
#include "kernels/base/dtype.h"

namespace sluiceway {

inline DType parse_dtype(const std::string& name) {
  if (name == "fp32") return DType::kF32;
  if (name == "bf16") return DType::kBF16;
  SLUICEWAY_CHECK(name == "fp16", "dtype: is \"", name, "\", expected fp32, bf16 or fp16");
  return DType::kF16;
}

}  // namespace sluiceway
