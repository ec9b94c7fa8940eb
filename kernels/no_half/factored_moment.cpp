#include "kernels/factored_moment.h"

#include "kernels/no_half/no_half.h"

namespace sluiceway::cuda {

void advance_moment(const FactoredMoment&, const FactoredMoment&, const MomentStep&,
                    const FactoredMoment&, ResidualVerdict*, StreamRef) {
  throw_no_half("advance_moment");
}

}  // namespace sluiceway::cuda
