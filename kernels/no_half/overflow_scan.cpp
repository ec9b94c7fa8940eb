#include "kernels/overflow_scan.h"

#include "kernels/no_half/no_half.h"

namespace sluiceway::cuda {

template <typename T>
void overflow_scan(std::span<const T>, ScanResult*, StreamRef) {
  throw_no_half("overflow_scan");
}

template <typename Dst>
void overflow_scan_copy(std::span<const float>, std::span<Dst>, ScanResult*, StreamRef) {
  throw_no_half("overflow_scan_copy");
}

void overflow_scan(const AnyMatrix&, ScanResult*, StreamRef) { throw_no_half("overflow_scan"); }

template void overflow_scan(std::span<const float>, ScanResult*, StreamRef);
template void overflow_scan(std::span<const f16>, ScanResult*, StreamRef);
template void overflow_scan(std::span<const bf16>, ScanResult*, StreamRef);
template void overflow_scan_copy(std::span<const float>, std::span<float>, ScanResult*, StreamRef);
template void overflow_scan_copy(std::span<const float>, std::span<f16>, ScanResult*, StreamRef);
template void overflow_scan_copy(std::span<const float>, std::span<bf16>, ScanResult*, StreamRef);

}  // namespace sluiceway::cuda
