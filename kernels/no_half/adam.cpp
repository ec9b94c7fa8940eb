#include "kernels/adam.h"

#include "kernels/no_half/no_half.h"

namespace sluiceway::cuda {

template <typename G, typename D>
void adam_direction(std::span<const G>, float, const AdamMoments&, const AdamHyper&, std::span<D>,
                    StreamRef) {
  throw_no_half("adam_direction");
}

template <typename G, typename Weight>
void adam_step(std::span<const G>, float, const AdamMoments&, const AdamHyper&, const Weight&,
               StreamRef) {
  throw_no_half("adam_step");
}

#define SLUICEWAY_INSTANTIATE(G)                                                                \
  template void adam_direction(std::span<const G>, float, const AdamMoments&, const AdamHyper&, \
                               std::span<float>, StreamRef);                                    \
  template void adam_direction(std::span<const G>, float, const AdamMoments&, const AdamHyper&, \
                               std::span<bf16>, StreamRef);                                     \
  template void adam_step(std::span<const G>, float, const AdamMoments&, const AdamHyper&,      \
                          const MasterWeight&, StreamRef);                                      \
  template void adam_step(std::span<const G>, float, const AdamMoments&, const AdamHyper&,      \
                          const MasterAndCopy<f16>&, StreamRef);                                \
  template void adam_step(std::span<const G>, float, const AdamMoments&, const AdamHyper&,      \
                          const MasterAndCopy<bf16>&, StreamRef);                               \
  template void adam_step(std::span<const G>, float, const AdamMoments&, const AdamHyper&,      \
                          const StochasticWeight&, StreamRef);                                  \
  template void adam_step(std::span<const G>, float, const AdamMoments&, const AdamHyper&,      \
                          const HiLoWeight&, StreamRef)

SLUICEWAY_INSTANTIATE(float);
SLUICEWAY_INSTANTIATE(f16);
SLUICEWAY_INSTANTIATE(bf16);
#undef SLUICEWAY_INSTANTIATE

}  // namespace sluiceway::cuda
