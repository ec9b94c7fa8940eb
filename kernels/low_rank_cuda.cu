#include "kernels/cuda/launch.cuh"
#include "kernels/cuda/theta.cuh"
#include "kernels/low_rank.h"
#include "kernels/low_rank_checks.h"
#include "kernels/perturb_checks.h"

namespace sluiceway::cuda {
namespace {

constexpr int kRows = 4;         // Rows of a thread, by kOctet columns.
constexpr unsigned kLanes = 32;  // Side by side in a row of threads.
constexpr unsigned kWarps = 8;   // Warps of a block, stacked.
constexpr std::int64_t kBlockRows = kRows * kWarps;
constexpr std::int64_t kBlockCols = kOctet * kLanes;

struct Extent {
  std::int64_t rows, cols;
};

// Four rows by eight columns, which one thread has, and which of them exist.
struct Patch {
  std::int64_t row, col;
  int rows, cols;

  __device__ static Patch of_thread(const Extent& w) {
    const std::int64_t row = blockIdx.x * kBlockRows + kRows * (threadIdx.x / kLanes);
    const std::int64_t col = blockIdx.y * kBlockCols + kOctet * (threadIdx.x % kLanes);
    const std::int64_t left = w.rows - row;
    return {row, col,
            left <= 0       ? 0
            : left >= kRows ? kRows
                            : static_cast<int>(left),
            octet_count(col, w.cols)};
  }
  __device__ TilePart part(int k, const Extent& w) const {
    return {(row + k) * w.cols + col, 0, k < rows ? cols : 0};
  }

  // x + L^T R.
  __device__ void add(const LowRank& product, float (&x)[kRows][kOctet]) const {
    for (std::int64_t s = 0; s < product.left.rows; ++s) {
      float r[kOctet];
      load_values(product.right.row(s) + col, cols, r);
      const float* const left = product.left.row(s) + row;
#pragma unroll
      for (int k = 0; k < kRows; ++k) {
        const float l = k < rows ? left[k] : 0.0F;
#pragma unroll
        for (int e = 0; e < kOctet; ++e) x[k][e] = __fmaf_rn(l, r[e], x[k][e]);
      }
    }
  }
};

// A block has 32 rows by 256 columns. All lanes of a warp share its left factors, and all warps but
// one read the right ones from the first-level cache. Roof: the bytes of w and of the output; from
// about 50 rows of factors on, arithmetic.
template <class Sink>
__global__ void low_rank_patches(Input w, Extent shape, std::uint64_t first, float gamma,
                                 LowRank pending, LowRank direction, float eps, Sink sink) {
  const Patch patch = Patch::of_thread(shape);
  float a[kRows][kOctet], z[kRows][kOctet] = {};
#pragma unroll
  for (int k = 0; k < kRows; ++k) w.load(patch.part(k, shape), a[k]);
  patch.add(pending, a);
  patch.add(direction, z);
#pragma unroll
  for (int k = 0; k < kRows; ++k) {
    const TilePart part = patch.part(k, shape);
#pragma unroll
    for (int e = 0; e < kOctet; ++e) a[k][e] = __fmul_rn(gamma, a[k][e]);
    sink.direction(eps, z[k], a[k], part);
    sink.finish(a[k], first + static_cast<std::uint64_t>(part.at), part);
  }
}

template <class Sink>
void launch_patches(const char* name, const AnyMatrix& w, std::uint64_t first, float gamma,
                    const LowRank& pending, const LowRank& direction, float eps, const Sink& sink,
                    StreamRef stream) {
  const auto blocks = [](std::int64_t elems, std::int64_t each) {
    return static_cast<unsigned>((elems + each - 1) / each);
  };
  launch(name, Kernel<low_rank_patches<Sink>>(),
         {dim3(blocks(w.rows, kBlockRows), blocks(w.cols, kBlockCols)), kLanes * kWarps}, stream,
         Input{w.data, w.dtype}, Extent{w.rows, w.cols}, first, gamma, pending, direction, eps,
         sink);
}

}  // namespace

void perturb_low_rank(const AnyMatrix& w, const AnyMatrix& plus, const AnyMatrix& minus,
                      const LowRank& pending, float gamma, const LowRank& direction, float eps,
                      StreamRef stream) {
  check_low_rank("perturb_low_rank", w, pending);
  check_neighbours("perturb_low_rank", w, plus, minus, direction);
  launch_patches("perturb_low_rank", w, 0, gamma, pending, direction, eps,
                 BothSides{plus.data, minus.data, plus.dtype}, stream);
}

void materialise_low_rank(const AnyMatrix& w, const AnyMatrix& out, const LowRank& pending,
                          float gamma, Rounding rounding, const NoiseKey& rounding_key,
                          std::uint64_t first, StreamRef stream) {
  check_low_rank("materialise_low_rank", w, pending);
  check_as_w("materialise_low_rank", "out", out, w);
  check_rounding_of("materialise_low_rank", out.dtype, rounding);
  const ThetaAlone sink{out.data, out.dtype, rounding == Rounding::kStochastic,
                        NoiseSource::of(rounding_key)};
  launch_patches("materialise_low_rank", w, first, gamma, pending, {}, 0.0F, sink, stream);
}

}  // namespace sluiceway::cuda
