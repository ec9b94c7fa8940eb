// Argument checks of perturb(). The CPU and the CUDA code make them first.
//
// Errors: InvalidArgument, naming the function and both sizes.
#pragma once

#include <cstddef>
#include <optional>
#include <span>

#include "kernels/base/check.h"
#include "kernels/perturb.h"

namespace sluiceway {

inline std::size_t check_perturbed(const char* function, std::span<const std::byte> w,
                                   WeightForm w_form, const Theta& theta) {
  const std::optional<std::size_t> elems = w_form.elems(w.size());
  SLUICEWAY_CHECK(elems.has_value() || w_form.is_fp8_image(), function, ": w has ", w.size(),
                  " bytes, expected a multiple of ", size_bytes(w_form.dtype()), " for ",
                  to_string(w_form));
  SLUICEWAY_CHECK(elems.has_value(), function, ": w has ", w.size(),
                  " bytes, which is no size of an fp8 image, expected n bytes for n elements and ",
                  kFp8Scales, " more for each tile of ", kFp8Tile,
                  " elements, a partial last tile included");
  SLUICEWAY_CHECK(theta.pending.size() <= kMaxPending, function, ": there are ",
                  theta.pending.size(), " pending updates, expected at most ", kMaxPending,
                  "; consolidate more often");
  return *elems;
}

inline void check_written(const char* function, const char* name, std::span<const std::byte> out,
                          DType dtype, std::size_t elems) {
  SLUICEWAY_CHECK(out.size() == elems * size_bytes(dtype), function, ": ", name, " has ",
                  out.size(), " bytes, expected ", elems * size_bytes(dtype), " for ", elems,
                  " elements of ", to_string(dtype), ", the length of w");
}

inline void check_rounding_of(const char* function, DType dtype, Rounding rounding) {
  SLUICEWAY_CHECK(rounding == Rounding::kNearest ||
                      (rounding == Rounding::kStochastic && dtype == DType::kBF16),
                  function, ": this rounding is not supported for ", to_string(dtype),
                  "; use nearest, or stochastic with bf16");
}

}  // namespace sluiceway
