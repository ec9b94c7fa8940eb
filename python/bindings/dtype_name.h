// The names that configs and options have for the types of numbers, and for fp8 images.
#pragma once

#include <string>

#include "kernels/base/check.h"
#include "kernels/base/dtype.h"
#include "kernels/weight_form.h"

namespace sluiceway {

inline DType parse_dtype(const std::string& name) {
  if (name == "fp32") return DType::kF32;
  if (name == "bf16") return DType::kBF16;
  SLUICEWAY_CHECK(name == "fp16", "dtype: is \"", name, "\", expected fp32, bf16 or fp16");
  return DType::kF16;
}

inline WeightForm parse_form(const std::string& name) {
  if (name == "fp8") return WeightForm::fp8_image();
  SLUICEWAY_CHECK(name == "fp32" || name == "bf16" || name == "fp16", "form: is \"", name,
                  "\", expected fp32, bf16, fp16 or fp8");
  return parse_dtype(name);
}

}  // namespace sluiceway
