#include "kernels/low_rank.h"

#include "kernels/no_half/no_half.h"

namespace sluiceway::cuda {

void perturb_low_rank(const AnyMatrix&, const AnyMatrix&, const AnyMatrix&, const LowRank&, float,
                      const LowRank&, float, StreamRef) {
  throw_no_half("perturb_low_rank");
}

void materialise_low_rank(const AnyMatrix&, const AnyMatrix&, const LowRank&, float, Rounding,
                          const NoiseKey&, std::uint64_t, StreamRef) {
  throw_no_half("materialise_low_rank");
}

}  // namespace sluiceway::cuda
