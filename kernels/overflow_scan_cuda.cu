#include "kernels/array_checks.h"
#include "kernels/cuda/scan.cuh"
#include "kernels/overflow_scan.h"

namespace sluiceway::cuda {
namespace {

// Reads n sizeof(T) bytes.
template <typename T>
struct ReadPass {
  MatrixView<const T> x;

  __device__ void take(std::int64_t row, std::int64_t col, int count, float (&out)[kOctet]) const {
    load_values(x.row(row) + col, count, out);
  }
};

// Reads 4 n bytes, and writes n sizeof(Dst) from the same registers.
template <typename Dst>
struct RoundPass {
  const float* src;
  Dst* dst;

  __device__ void take(std::int64_t, std::int64_t i, int count, float (&out)[kOctet]) const {
    load_values(src + i, count, out);
    store_nearest(dst + i, out, count);
  }
};

template <typename T>
void scan_matrix(MatrixView<const T> x, ScanResult* result, StreamRef stream) {
  if (x.contiguous()) x = {x.data, 1, x.elems()};  // Its rows are one.
  run_scan("overflow_scan", ReadPass<T>{x}, x.rows, x.cols, result, stream);
}

}  // namespace

template <typename T>
void overflow_scan(std::span<const T> x, ScanResult* result, StreamRef stream) {
  scan_matrix(MatrixView<const T>(x.data(), 1, static_cast<std::int64_t>(x.size())), result,
              stream);
}

template <typename Dst>
void overflow_scan_copy(std::span<const float> src, std::span<Dst> dst, ScanResult* result,
                        StreamRef stream) {
  check_copy_lengths("overflow_scan_copy", src.size(), dst.size());
  run_scan("overflow_scan_copy", RoundPass<Dst>{src.data(), dst.data()}, 1,
           static_cast<std::int64_t>(src.size()), result, stream);
}

void overflow_scan(const AnyMatrix& x, ScanResult* result, StreamRef stream) {
  with_elements(x, [&](auto view) { scan_matrix(view, result, stream); });
}

template void overflow_scan(std::span<const float>, ScanResult*, StreamRef);
template void overflow_scan(std::span<const f16>, ScanResult*, StreamRef);
template void overflow_scan(std::span<const bf16>, ScanResult*, StreamRef);
template void overflow_scan_copy(std::span<const float>, std::span<float>, ScanResult*, StreamRef);
template void overflow_scan_copy(std::span<const float>, std::span<f16>, ScanResult*, StreamRef);
template void overflow_scan_copy(std::span<const float>, std::span<bf16>, ScanResult*, StreamRef);

}  // namespace sluiceway::cuda
