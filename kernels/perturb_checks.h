// Argument checks of perturb(), which both halves make before anything else.
//
// Errors: InvalidArgument, naming the function and both sizes.
#pragma once

#include "kernels/base/check.h"
#include "kernels/perturb.h"

namespace sluiceway {

inline std::size_t check_perturbed(const char* function, std::span<const std::byte> w,
                                   DType w_dtype, const Theta& theta) {
  SLUICEWAY_CHECK(w.size() % size_bytes(w_dtype) == 0, function, ": w has ", w.size(),
                  " bytes, expected a multiple of ", size_bytes(w_dtype), " for ",
                  to_string(w_dtype));
  SLUICEWAY_CHECK(theta.pending.size() <= kMaxPending, function, ": there are ",
                  theta.pending.size(), " pending updates, expected at most ", kMaxPending,
                  "; consolidate more often");
  return w.size() / size_bytes(w_dtype);
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
