// Argument checks of perturb(), which both halves make before anything else.
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
                  " bytes, which no fp8 image "
                  "has, expected n and ",
                  kFp8Scales, " for each ", kFp8Tile, " of n elements, begun ones included");
  SLUICEWAY_CHECK(theta.pending.size() <= kMaxPending, function, ": there are ",
                  theta.pending.size(), " pending updates, expected at most ", kMaxPending,
                  "; consolidate more often");
  return *elems;
}

inline void check_written(const char* function, const char* name, std::span<const std::byte> out,
                          DType dtype, std::size_t elems) {
  SLUICEWAY_CHECK(out.size() == elems * size_bytes(dtype), function, ": ", name, " has ",
                  out.size(), " bytes, expected ", elems * size_bytes(dtype), " for ", elems,
                  " elements of ", to_string(dtype), ", as many as w has");
}

inline void check_rounding_of(const char* function, DType dtype, Rounding rounding) {
  SLUICEWAY_CHECK(rounding == Rounding::kNearest ||
                      (rounding == Rounding::kStochastic && dtype == DType::kBF16),
                  function, ": this rounding is not one of ", to_string(dtype),
                  ", expected nearest, or stochastic for bf16");
}

}  // namespace sluiceway
