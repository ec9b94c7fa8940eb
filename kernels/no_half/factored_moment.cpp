#include "kernels/factored_moment.h"

#include "kernels/no_half/no_half.h"

namespace sluiceway::cuda {

void use_means(const MeansPass&, StreamRef) { throw_no_half("use_means"); }

}  // namespace sluiceway::cuda
