#include "kernels/gradient_copy.h"

#include "kernels/no_half/no_half.h"

namespace sluiceway::cuda {

template <typename Src, typename Dst>
void gradient_copy(std::span<const Src>, std::span<Dst>, ScanResult*, StreamRef) {
  throw_no_half("gradient_copy");
}

void gradient_copy(std::span<const std::byte>, DType, std::span<std::byte>, DType, ScanResult*,
                   StreamRef) {
  throw_no_half("gradient_copy");
}

template void gradient_copy(std::span<const float>, std::span<float>, ScanResult*, StreamRef);
template void gradient_copy(std::span<const f16>, std::span<f16>, ScanResult*, StreamRef);
template void gradient_copy(std::span<const bf16>, std::span<bf16>, ScanResult*, StreamRef);
template void gradient_copy(std::span<const float>, std::span<f16>, ScanResult*, StreamRef);
template void gradient_copy(std::span<const float>, std::span<bf16>, ScanResult*, StreamRef);

}  // namespace sluiceway::cuda
