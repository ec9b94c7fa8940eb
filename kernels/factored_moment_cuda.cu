#include <algorithm>
#include <cstdint>

#include "kernels/cuda/launch.cuh"
#include "kernels/cuda/means.cuh"
#include "kernels/cuda/octet.cuh"
#include "kernels/cuda/reduce.cuh"
#include "kernels/cuda/stream_scratch.cuh"
#include "kernels/factored_moment.h"

namespace sluiceway::cuda {
namespace {

constexpr std::int64_t kStripCols = kMaxThreads * kOctet;  // An octet a thread.
constexpr std::int64_t kRowsAtOnce = 32;                   // Between two barriers of a block.
constexpr int kRowsAhead = 4;                              // Loaded together.
constexpr unsigned kWarps = kMaxThreads / 32;
constexpr std::int64_t kWarpCols = kStripCols / kWarps;

// ---- The moment
// ----------------------------------------------------------------------------------

struct RowsAndCols {  // A vector of rows, and behind it one of columns.
  float *row, *col;
  std::int64_t rows;

  static RowsAndCols of(const FactoredMoment& moment) {
    return {moment.row.data(), moment.col.data(), static_cast<std::int64_t>(moment.row.size())};
  }
  __device__ float& operator[](std::int64_t i) const { return i < rows ? row[i] : col[i - rows]; }
};

// Sums over rows and over columns: of the means, then of the moment that they advance to.
enum MeansSum { kMeansRow, kMeansCol, kMomentRow, kMomentCol, kMeansSums };

struct MomentTotals {  // What the roots of every element have in common.
  double mean_row, correction;
  bool finite;
};

constexpr GridLimits kJoinLimits{1, 256};  // On any device: equal bits on all.
constexpr std::size_t kTotalsAt = kJoinLimits.most * kMeansSums * sizeof(double);
constexpr std::size_t kMomentBytes = kTotalsAt + 256;  // In front of the stream's scratch.
static_assert(sizeof(MomentTotals) <= 256 && kMomentBytes < kStreamPartsBytes);

// A MeansPass, for kernels.
struct Use {
  RowsAndCols means, from, to;
  std::int64_t elems;
  MomentStep step;
  ResidualVerdict* verdict;
  double share, lr;
  bool advances;

  static Use of(const MeansPass& pass) {
    const auto elems = static_cast<std::int64_t>(pass.means.row.size() + pass.means.col.size());
    return {RowsAndCols::of(pass.means),
            RowsAndCols::of(pass.from),
            RowsAndCols::of(pass.to),
            elems,
            pass.step,
            pass.verdict,
            pass.share,
            pass.lr,
            !pass.to.empty()};
  }
  __host__ __device__ bool any() const { return verdict != nullptr || advances; }

  __device__ float advanced(std::int64_t i) const { return advanced_mean(step, from[i], means[i]); }

  __device__ void add(std::int64_t i, double (&sums)[kMeansSums]) const {
    const bool is_row = i < means.rows;
    const auto mean = static_cast<double>(means[i]);
    const double moment = advances ? static_cast<double>(advanced(i)) : 0.0;
    sums[kMeansRow] += is_row ? mean : 0.0;
    sums[kMeansCol] += is_row ? 0.0 : mean;
    sums[kMomentRow] += is_row ? moment : 0.0;
    sums[kMomentCol] += is_row ? 0.0 : moment;
  }

  // By one thread. Nothing of the moment is written before its mean is known: write_roots()
  // advances it again, to the same bits.
  __device__ void conclude(const double (&sums)[kMeansSums], MomentTotals* totals) const {
    const auto rows = static_cast<double>(means.rows);
    const auto cols = static_cast<double>(elems - means.rows);
    if (verdict != nullptr) {
      verdict->trains = residual_trains(sums[kMeansRow] / rows, sums[kMeansCol] / cols, rows * cols,
                                        share, verdict->core.sum_squares);
      verdict->alpha = static_cast<float>(-lr);
    }
    if (!advances || (verdict != nullptr && !verdict->trains)) return;
    const std::int64_t t = verdict != nullptr ? ++verdict->steps : step.step;
    totals->mean_row = sums[kMomentRow] / rows;
    totals->finite = is_finite(totals->mean_row) && is_finite(sums[kMomentCol] / cols);
    totals->correction = 1.0 - pow(step.beta2, static_cast<double>(t));
  }
};

// One element a thread. Roof: 16 (m + n) bytes; a division and a root in double an element.
__global__ void write_roots(Use use, const MomentTotals* totals) {
  if (use.verdict != nullptr && !use.verdict->trains) return;
  const std::int64_t i = std::int64_t{blockIdx.x} * blockDim.x + threadIdx.x;
  if (i >= use.elems) return;
  const bool is_row = i < use.means.rows;
  const float advanced = use.advanced(i);
  float root = is_row ? __uint_as_float(0x7F800000U) : 1.0F;
  if (totals->finite && is_row) {
    root = static_cast<float>(sqrt(row_share(advanced, totals->mean_row)) / use.step.factor);
  } else if (totals->finite) {
    root = static_cast<float>(sqrt(static_cast<double>(advanced) / totals->correction));
  }
  use.to[i] = advanced;
  use.means[i] = root;
}

// ---- Squares
// -------------------------------------------------------------------------------------

// What two kernels hand over: the sums of each row over a strip of columns, and of each column over
// a slab of rows. Both fit into the stream's scratch, behind what kernels on the moment hand over.
struct Parts {
  float* of_rows;  // strips x rows
  float* of_cols;  // slabs x cols
  std::int64_t strips, slabs, slab_rows;

  static constexpr auto kHalf =
      static_cast<std::int64_t>((kStreamPartsBytes - kMomentBytes) / (2 * sizeof(float)));

  static Parts of(std::int64_t rows, std::int64_t cols, const StreamScratch& stream) {
    float* const scratch = reinterpret_cast<float*>(stream.parts<std::byte>() + kMomentBytes);
    const std::int64_t strips = (cols + kStripCols - 1) / kStripCols;
    const std::int64_t most = std::clamp<std::int64_t>(kHalf / cols, 1, 1024);
    const std::int64_t slab_rows =
        std::max(kRowsAtOnce, (rows + most - 1) / most + kRowsAtOnce - 1) / kRowsAtOnce *
        kRowsAtOnce;
    return {scratch, scratch + kHalf, strips, (rows + slab_rows - 1) / slab_rows, slab_rows};
  }
};

// A block has a strip of 2048 columns of a slab of rows, and a thread an octet of those: the sums
// of its columns stay in registers, those of a row go over the warp by five shuffles, and over the
// block 32 rows at a time. Loads are of 16 bytes, 512 side by side a warp of a 16-bit type. Roof:
// m n sizeof(T) bytes; 4 flop an element.
template <typename T>
__global__ void sum_squares(MatrixView<const T> g, float scale, Parts parts) {
  __shared__ float row_sums[kWarps][kRowsAtOnce];
  const std::int64_t strip = blockIdx.x % parts.strips, slab = blockIdx.x / parts.strips;
  const std::int64_t col = strip * kStripCols + threadIdx.x * kOctet;
  const int count = octet_count(col, g.cols);
  const unsigned warp = threadIdx.x / 32;
  const auto warps = static_cast<unsigned>(  // That have columns.
      min((g.cols - strip * kStripCols + kWarpCols - 1) / kWarpCols, std::int64_t{kWarps}));
  const std::int64_t first = slab * parts.slab_rows;
  const std::int64_t end = min(first + parts.slab_rows, g.rows);
  float col_sums[kOctet] = {};
  for (std::int64_t row = first; row < end; row += kRowsAtOnce) {
    const std::int64_t rows = min(kRowsAtOnce, end - row);
    for (std::int64_t ahead = 0; warp < warps && ahead < rows; ahead += kRowsAhead) {
      Octet<T> octets[kRowsAhead];
      load_octets(g.row(row + ahead) + col, g.stride, rows - ahead, count, octets);
#pragma unroll
      for (int r = 0; r < kRowsAhead; ++r) {  // Rows that are not there are zeros.
        float sum = 0.0F;
#pragma unroll
        for (int k = 0; k < kOctet; ++k) {
          const float scaled = __fmul_rn(scale, value_of(octets[r], k));
          sum = fmaf(scaled, scaled, sum);
          col_sums[k] = fmaf(scaled, scaled, col_sums[k]);
        }
        sum = warp_sum(sum);
        if (threadIdx.x % 32 == 0) row_sums[warp][ahead + r] = sum;
      }
    }
    __syncthreads();
    if (threadIdx.x < rows) {
      float sum = 0.0F;
      for (unsigned w = 0; w < warps; ++w) sum += row_sums[w][threadIdx.x];
      parts.of_rows[strip * g.rows + row + threadIdx.x] = sum;
    }
    __syncthreads();  // The next rows write here.
  }
  store_nearest(parts.of_cols + slab * g.cols + col, col_sums, count);
}

struct Join {  // means[i] = factor * (sum over parts, ascending); `more` adds to what is there.
  const float* parts;
  std::int64_t count, elems;
  float factor;
  bool more;
  float* means;

  // Of means that are whole.
  static Join none(std::span<float> means) {
    return {nullptr, 0, static_cast<std::int64_t>(means.size()), 0.0F, true, means.data()};
  }
  __device__ void make(std::int64_t i) const {
    if (more && count == 0) return;
    float sum = 0.0F;
#pragma unroll 8
    for (std::int64_t part = 0; part < count; ++part) sum += parts[part * elems + i];
    means[i] = more ? fmaf(sum, factor, means[i]) : __fmul_rn(sum, factor);
  }
};

// Rows, then columns: a thread has one element of each 65,536, 128 bytes side by side a warp. What
// has a use needs all means: none of them is then joined by another launch. Roof: 4 count elems
// bytes of each read and 4 elems written (8 with `more`), a few hundredths of what sum_squares
// reads; one flop a part. A moment that advances is 4 bytes and 10 flop in double an element.
__global__ void join_parts(Join rows, Join cols, Use use, unsigned* ticket, double* parts,
                           MomentTotals* totals) {
  const std::int64_t elems = rows.elems + cols.elems;
  const std::int64_t grid = std::int64_t{gridDim.x} * blockDim.x;
  double sums[kMeansSums] = {};
  for (std::int64_t i = std::int64_t{blockIdx.x} * blockDim.x + threadIdx.x; i < elems; i += grid) {
    if (i < rows.elems) {
      rows.make(i);
    } else {
      cols.make(i - rows.elems);
    }
    if (use.any()) use.add(i, sums);
  }
  if (!use.any()) return;
  double total[kMeansSums];
  if (sum_of_grid(sums, ticket, parts, total)) use.conclude(total, totals);
}

void join(const Join& rows, const Join& cols, const Use& use, const StreamScratch& scratch,
          StreamRef stream) {
  const auto blocks = [](std::int64_t elems) { return (elems + kMaxThreads - 1) / kMaxThreads; };
  auto* const totals = reinterpret_cast<MomentTotals*>(scratch.parts<std::byte>() + kTotalsAt);
  const std::int64_t elems = rows.elems + cols.elems;
  launch("mean_squares", Kernel<join_parts>(), {kJoinLimits.blocks(blocks(elems)), kMaxThreads},
         stream, rows, cols, use, scratch.ticket(), scratch.parts<double>(), totals);
  if (!use.advances) return;
  launch("use_means", Kernel<write_roots>(), {static_cast<unsigned>(blocks(elems)), kMaxThreads},
         stream, use, totals);
}

template <typename T>
void means_of(MatrixView<const T> g, const MeansPass& pass, float scale, StreamRef stream) {
  const StreamScratch scratch(stream);
  const Use use = Use::of(pass);
  float *const rows = pass.means.row.data(), *const cols = pass.means.col.data();
  if (g.elems() == 0) {  // Nothing to sum: zeros.
    const Join of_rows{nullptr, 0, g.rows, 0.0F, false, rows},
        of_cols{nullptr, 0, g.cols, 0.0F, false, cols};
    return join(of_rows, of_cols, use, scratch, stream);
  }
  const float per_row = 1.0F / static_cast<float>(g.cols);
  const float per_col = 1.0F / static_cast<float>(g.rows);
  bool in_parts = false;
  // A matrix whose sums the scratch has no room for is taken in parts, one after the other.
  for (std::int64_t col = 0; col < g.cols; col += Parts::kHalf) {
    const std::int64_t width = std::min(Parts::kHalf, g.cols - col);
    const std::int64_t most_rows = Parts::kHalf / ((width + kStripCols - 1) / kStripCols);
    for (std::int64_t row = 0; row < g.rows; row += most_rows) {
      const std::int64_t height = std::min(most_rows, g.rows - row);
      const MatrixView<const T> part(g.row(row) + col, height, width, g.stride);
      const Parts parts = Parts::of(height, width, scratch);
      in_parts = in_parts || part.elems() < g.elems();
      launch("mean_squares", Kernel<sum_squares<T>>(),
             {static_cast<unsigned>(parts.strips * parts.slabs), kMaxThreads}, stream, part, scale,
             parts);
      join({parts.of_rows, parts.strips, height, per_row, col > 0, rows + row},
           {parts.of_cols, parts.slabs, width, per_col, row > 0, cols + col},
           in_parts ? Use{} : use, scratch, stream);
    }
  }
  if (!in_parts || !use.any()) return;
  join(Join::none(pass.means.row), Join::none(pass.means.col), use, scratch, stream);
}

}  // namespace

void means_of_squares(const AnyMatrix& g, const MeansPass& pass, float scale, StreamRef stream) {
  with_elements(g, [&](auto view) { means_of(view, pass, scale, stream); });
}

void use_means(const MeansPass& pass, StreamRef stream) {
  const StreamScratch scratch(stream);
  join(Join::none(pass.means.row), Join::none(pass.means.col), Use::of(pass), scratch, stream);
}

}  // namespace sluiceway::cuda
