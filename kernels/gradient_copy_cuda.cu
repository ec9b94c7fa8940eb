#include <type_traits>

#include "kernels/array_checks.h"
#include "kernels/base/elements.h"
#include "kernels/cuda/scan.cuh"
#include "kernels/gradient_copy.h"

namespace sluiceway::cuda {
namespace {

// Reads n sizeof(Src) bytes and writes n sizeof(Dst); scans the octet that it stored.
template <typename Src, typename Dst>
struct WritePass {
  const Src* src;
  Dst* dst;

  __device__ void take(std::int64_t, std::int64_t i, int count, float (&out)[kOctet]) const {
    const Octet<Src> read = load_octet(src + i, count);
    if constexpr (std::is_same_v<Src, Dst>) {  // As bits, so that a NaN keeps its payload.
      store_octet(dst + i, read, count);
      values_of(read, out);
    } else {
      values_of(read, out);
      const Octet<Dst> written = nearest_octet<Dst>(out);
      store_octet(dst + i, written, count);
      values_of(written, out);
    }
  }
};

}  // namespace

template <typename Src, typename Dst>
void gradient_copy(std::span<const Src> src, std::span<Dst> dst, ScanResult* result,
                   StreamRef stream) {
  check_copy_lengths("gradient_copy", src.size(), dst.size());
  run_scan("gradient_copy", WritePass<Src, Dst>{src.data(), dst.data()}, 1,
           static_cast<std::int64_t>(src.size()), result, stream);
}

template void gradient_copy(std::span<const float>, std::span<float>, ScanResult*, StreamRef);
template void gradient_copy(std::span<const f16>, std::span<f16>, ScanResult*, StreamRef);
template void gradient_copy(std::span<const bf16>, std::span<bf16>, ScanResult*, StreamRef);
template void gradient_copy(std::span<const float>, std::span<f16>, ScanResult*, StreamRef);
template void gradient_copy(std::span<const float>, std::span<bf16>, ScanResult*, StreamRef);

void gradient_copy(std::span<const std::byte> src, DType src_dtype, std::span<std::byte> dst,
                   DType dst_dtype, ScanResult* result, StreamRef stream) {
  check_copy_types(src.size(), src_dtype, dst.size(), dst_dtype);
  const auto copy = [&]<typename Src, typename Dst>(Src, Dst) {
    cuda::gradient_copy<Src, Dst>(elements<Src>(src), elements<Dst>(dst), result, stream);
  };
  if (src_dtype == DType::kF16) return copy(f16{}, f16{});
  if (src_dtype == DType::kBF16) return copy(bf16{}, bf16{});
  if (dst_dtype == DType::kF16) return copy(float{}, f16{});
  if (dst_dtype == DType::kBF16) return copy(float{}, bf16{});
  copy(float{}, float{});
}

}  // namespace sluiceway::cuda
