// mean_squares() of residual.h, which also uses the means, in two launches.
//
//   sum_squares    adds up rows over strips of columns, and columns over slabs of rows; the block
//                  that ends last judges the residual, and finds what all roots have in common
//   finish_means   writes the means, or the moment that they advance and its roots
#include <algorithm>
#include <cstdint>

#include "kernels/cuda/launch.cuh"
#include "kernels/cuda/octet.cuh"
#include "kernels/cuda/reduce.cuh"
#include "kernels/cuda/scan.cuh"
#include "kernels/cuda/stream_scratch.cuh"
#include "kernels/projector_shapes.h"
#include "kernels/residual.h"

namespace sluiceway::cuda {
namespace {

constexpr std::int64_t kStripCols = kMaxThreads * kOctet;  // An octet a thread.
constexpr std::int64_t kRowsAtOnce = 32;                   // Between two barriers of a block.
constexpr int kRowsAhead = 4;                              // Loaded together.
constexpr unsigned kWarps = kMaxThreads / 32;
constexpr std::int64_t kWarpCols = kStripCols / kWarps;
constexpr std::int64_t kMostSlabs = 1024;
constexpr std::int64_t kMostBlocks = 1536;  // Strips times slabs, of one launch.

// ---- The moment --------------------------------------------------------------------------------

struct RowsAndCols {  // A vector of rows, and behind it one of columns.
  float *row, *col;
  std::int64_t rows;

  static RowsAndCols of(const FactoredMoment& moment) {
    return {moment.row.data(), moment.col.data(), static_cast<std::int64_t>(moment.row.size())};
  }
  __device__ float& operator[](std::int64_t i) const { return i < rows ? row[i] : col[i - rows]; }
};

// The sums over the grid of sum_squares(): squares of the matrix and of the core, and the moment
// before it advances.
enum GridSum { kSquares, kCoreSquares, kFromRow, kFromCol, kGridSums };

// The results of sum_squares() that finish_means() reads.
struct Totals {
  double sum_squares;  // Of the pieces so far.
  double mean_row, correction;
  bool finite;
};

// A MeansPass, for kernels.
struct Use {
  RowsAndCols means, from, to;
  std::int64_t rows, cols;
  MatrixView<const float> core;
  MomentStep step;
  ResidualVerdict* verdict;
  double share, lr;
  bool advances;

  static Use of(const MeansPass& pass) {
    return {RowsAndCols::of(pass.means),
            RowsAndCols::of(pass.from),
            RowsAndCols::of(pass.to),
            static_cast<std::int64_t>(pass.means.row.size()),
            static_cast<std::int64_t>(pass.means.col.size()),
            pass.core,
            pass.step,
            pass.verdict,
            pass.share,
            pass.lr,
            !pass.to.empty()};
  }
  __host__ __device__ bool any() const { return verdict != nullptr || advances; }

  // A thread's part of all sums but kSquares. Each block reads a piece of the vectors and of the
  // core, which are small beside the matrix.
  __device__ void add(double (&sums)[kGridSums]) const {
    const std::int64_t grid = std::int64_t{gridDim.x} * blockDim.x;
    const std::int64_t elems = advances ? rows + cols : 0;
    for (std::int64_t i = std::int64_t{blockIdx.x} * blockDim.x + threadIdx.x; i < elems;
         i += grid) {
      const auto x = static_cast<double>(from[i]);
      sums[kFromRow] += i < rows ? x : 0.0;
      sums[kFromCol] += i < rows ? 0.0 : x;
    }
    RunningScan scan;
    for (std::int64_t row = blockIdx.x * kWarps + threadIdx.x / 32; row < core.rows;
         row += gridDim.x * kWarps) {
      for (std::int64_t col = threadIdx.x % 32 * kOctet; col < core.cols; col += 32 * kOctet) {
        float x[kOctet];
        load_values(core.row(row) + col, octet_count(col, core.cols), x);
        scan.add(x);
      }
    }
    sums[kCoreSquares] = scan.sum_squares();
  }

  // Called by one thread, when totals->sum_squares is that of the whole matrix.
  __device__ void conclude(const double (&sums)[kGridSums], Totals* totals) const {
    const auto m = static_cast<double>(rows), n = static_cast<double>(cols);
    const double squares = totals->sum_squares;
    if (verdict != nullptr) {
      verdict->trains = residual_trains(m * n, squares, share, sums[kCoreSquares]);
      verdict->alpha = static_cast<float>(-lr);
    }
    if (!advances || (verdict != nullptr && !verdict->trains)) return;
    const std::int64_t t = verdict != nullptr ? ++verdict->steps : step.step;
    const double row = advanced(step, sums[kFromRow], squares / n);
    const double col = advanced(step, sums[kFromCol], squares / m);
    totals->finite = fits_f32(squares) && fits_f32(row) && fits_f32(col);
    totals->mean_row = row / m;
    totals->correction = 1.0 - pow(step.beta2, static_cast<double>(t));
  }

  // Advances element i, whose mean of squares is `mean`.
  __device__ void take(std::int64_t i, float mean, const Totals& totals) const {
    const bool is_row = i < rows;
    const float moment = advanced_mean(step, from[i], mean);
    float root = is_row ? __uint_as_float(kInfinityBits) : 1.0F;
    if (totals.finite && is_row) {
      root = static_cast<float>(sqrt(row_share(moment, totals.mean_row)) / step.factor);
    } else if (totals.finite) {
      root = static_cast<float>(sqrt(static_cast<double>(moment) / totals.correction));
    }
    to[i] = moment;
    means[i] = root;
  }
};

// ---- The stream's scratch ----------------------------------------------------------------------

constexpr std::size_t kSumsBytes = kMostBlocks * kGridSums * sizeof(double);
constexpr std::size_t kScansBytes = kMostBlocks * sizeof(ScanPart);
constexpr std::size_t kTotalsBytes = 256;
static_assert(sizeof(Totals) <= kTotalsBytes);

struct Scratch {
  unsigned* tickets;  // Of the scan, and of the sums.
  double* sums;
  ScanPart* scans;
  Totals* totals;
  float* of_rows;  // strips x rows
  float* of_cols;  // slabs x cols

  // Elements of of_rows, and of of_cols.
  static constexpr auto kHalf = static_cast<std::int64_t>(
      (kStreamPartsBytes - kSumsBytes - kScansBytes - kTotalsBytes) / (2 * sizeof(float)));
  static_assert(kHalf / kStripCols + kMostSlabs <= kMostBlocks);

  static Scratch of(const StreamScratch& stream) {
    std::byte* const sums = stream.parts<std::byte>();
    std::byte* const scans = sums + kSumsBytes;
    std::byte* const totals = scans + kScansBytes;
    auto* const floats = reinterpret_cast<float*>(totals + kTotalsBytes);
    return {stream.ticket(),
            reinterpret_cast<double*>(sums),
            reinterpret_cast<ScanPart*>(scans),
            reinterpret_cast<Totals*>(totals),
            floats,
            floats + kHalf};
  }
};

// ---- Squares -----------------------------------------------------------------------------------

// The division of a launch's piece of the matrix among at least one block.
struct Blocks {
  std::int64_t strips, slabs, slab_rows;

  static Blocks of(std::int64_t rows, std::int64_t cols) {
    const std::int64_t strips = std::max<std::int64_t>(1, (cols + kStripCols - 1) / kStripCols);
    const std::int64_t most =
        std::clamp<std::int64_t>(Scratch::kHalf / std::max<std::int64_t>(1, cols), 1, kMostSlabs);
    const std::int64_t slab_rows =
        std::max(kRowsAtOnce, (rows + most - 1) / most + kRowsAtOnce - 1) / kRowsAtOnce *
        kRowsAtOnce;
    return {strips, std::max<std::int64_t>(1, (rows + slab_rows - 1) / slab_rows), slab_rows};
  }
};

// A matrix whose sums do not fit into the scratch is taken in pieces, one after the other.
struct Pieces {
  std::int64_t rows, cols;  // Of a piece, at most.
  bool are_one;

  static Pieces of(std::int64_t rows, std::int64_t cols) {
    const std::int64_t most_cols = std::clamp<std::int64_t>(cols, 1, Scratch::kHalf);
    const std::int64_t most_rows = Scratch::kHalf / Blocks::of(0, most_cols).strips;
    return {most_rows, most_cols, rows <= most_rows && cols <= most_cols};
  }
};

template <typename T>
struct Piece {
  MatrixView<const T> g;
  bool first, last;
};

// A block has a strip of 2048 columns of a slab of rows, and a thread an octet of those: the sums
// of its columns stay in registers, those of a row go over the warp by five shuffles, and over the
// block 32 rows at a time. Loads are of 16 bytes, 512 side by side a warp of a 16-bit type. Roof:
// m n sizeof(T) bytes; 4 flop an element, and 4 more for the scan.
template <typename T, bool kScans>
__global__ void sum_squares(Piece<T> piece, float scale, Blocks blocks, Use use, Scratch scratch,
                            ScanResult* scan_to) {
  __shared__ float row_sums[kWarps][kRowsAtOnce];
  const MatrixView<const T>& g = piece.g;
  const std::int64_t strip = blockIdx.x % blocks.strips, slab = blockIdx.x / blocks.strips;
  const std::int64_t col = strip * kStripCols + threadIdx.x * kOctet;
  const int count = octet_count(col, g.cols);
  const unsigned warp = threadIdx.x / 32;
  const auto warps = static_cast<unsigned>(  // That have columns.
      min((g.cols - strip * kStripCols + kWarpCols - 1) / kWarpCols, std::int64_t{kWarps}));
  const std::int64_t first = slab * blocks.slab_rows;
  const std::int64_t end = min(first + blocks.slab_rows, g.rows);
  float col_sums[kOctet] = {};
  double sums[kGridSums] = {};
  RunningScan scan;
  for (std::int64_t row = first; row < end; row += kRowsAtOnce) {
    const std::int64_t rows = min(kRowsAtOnce, end - row);
    for (std::int64_t ahead = 0; warp < warps && ahead < rows; ahead += kRowsAhead) {
      Octet<T> octets[kRowsAhead];
      load_octets(g.row(row + ahead) + col, g.stride, rows - ahead, count, octets);
#pragma unroll
      for (int r = 0; r < kRowsAhead; ++r) {  // Rows that are not there are zeros.
        float x[kOctet], sum = 0.0F;
        values_of(octets[r], x);
        if constexpr (kScans) scan.add(x);
#pragma unroll
        for (int k = 0; k < kOctet; ++k) {
          const float scaled = __fmul_rn(scale, x[k]);
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
      scratch.of_rows[strip * g.rows + row + threadIdx.x] = sum;
      sums[kSquares] += static_cast<double>(sum);
    }
    __syncthreads();  // The next rows write here.
  }
  store_nearest(scratch.of_cols + slab * g.cols + col, col_sums, count);
  if constexpr (kScans) finish_scan(scan, scratch.tickets, scratch.scans, scan_to);
  if (!use.any()) return;
  use.add(sums);
  double total[kGridSums];
  if (!sum_of_grid(sums, scratch.tickets + 1, scratch.sums, total)) return;
  Totals* const totals = scratch.totals;
  totals->sum_squares = total[kSquares] + (piece.first ? 0.0 : totals->sum_squares);
  if (piece.last) use.conclude(total, totals);
}

struct Join {  // factor * (sum over parts, ascending), and with `more` what is in means already.
  const float* parts;
  std::int64_t count, elems;
  float factor;
  bool more;
  float* means;

  // For means that are whole.
  static Join none(std::span<float> means) {
    return {nullptr, 0, static_cast<std::int64_t>(means.size()), 0.0F, true, means.data()};
  }
  __device__ float mean(std::int64_t i) const {
    if (more && count == 0) return means[i];
    float sum = 0.0F;
#pragma unroll 8
    for (std::int64_t part = 0; part < count; ++part) sum += parts[part * elems + i];
    return more ? fmaf(sum, factor, means[i]) : __fmul_rn(sum, factor);
  }
};

// Rows, then columns, one element a thread: 128 bytes side by side a warp. Roof: 4 count elems
// bytes of each read and 4 elems written (8 with `more`), a few hundredths of the bytes that
// sum_squares() reads; one flop a part. A moment that advances adds 8 bytes, a division and a root
// in double.
__global__ void finish_means(Join rows, Join cols, Use use, const Totals* totals) {
  const std::int64_t i = std::int64_t{blockIdx.x} * blockDim.x + threadIdx.x;
  if (i >= rows.elems + cols.elems) return;
  const bool is_row = i < rows.elems;
  const std::int64_t at = is_row ? i : i - rows.elems;
  const float mean = is_row ? rows.mean(at) : cols.mean(at);
  if (use.advances && (use.verdict == nullptr || use.verdict->trains)) {
    use.take(i, mean, *totals);
  } else {
    (is_row ? rows.means : cols.means)[at] = mean;
  }
}

void finish(const Join& rows, const Join& cols, const Use& use, const Scratch& scratch,
            StreamRef stream) {
  const std::int64_t blocks = (rows.elems + cols.elems + kMaxThreads - 1) / kMaxThreads;
  launch("mean_squares", Kernel<finish_means>(), {static_cast<unsigned>(blocks), kMaxThreads},
         stream, rows, cols, use, scratch.totals);
}

template <typename T>
void means_of(MatrixView<const T> g, const Pieces& pieces, const MeansPass& pass, float scale,
              StreamRef stream) {
  const StreamScratch stream_scratch(stream);
  const Scratch scratch = Scratch::of(stream_scratch);
  const Use use = Use::of(pass);
  float *const rows = pass.means.row.data(), *const cols = pass.means.col.data();
  const float per_row = 1.0F / static_cast<float>(std::max<std::int64_t>(1, g.cols));
  const float per_col = 1.0F / static_cast<float>(std::max<std::int64_t>(1, g.rows));
  for (std::int64_t col = 0; col == 0 || col < g.cols; col += pieces.cols) {
    const std::int64_t width = std::min(pieces.cols, g.cols - col);
    for (std::int64_t row = 0; row == 0 || row < g.rows; row += pieces.rows) {
      const std::int64_t height = std::min(pieces.rows, g.rows - row);
      const Piece<T> piece{{g.row(row) + col, height, width, g.stride},
                           row == 0 && col == 0,
                           row + height == g.rows && col + width == g.cols};
      const Blocks blocks = Blocks::of(height, width);
      const auto sum = [&](auto kernel) {
        launch("mean_squares", kernel,
               {static_cast<unsigned>(blocks.strips * blocks.slabs), kMaxThreads}, stream, piece,
               scale, blocks, use, scratch, pass.scan);
      };
      if (pieces.are_one && pass.scan != nullptr) {
        sum(Kernel<sum_squares<T, true>>());
      } else {
        sum(Kernel<sum_squares<T, false>>());
      }
      finish({scratch.of_rows, blocks.strips, height, per_row, col > 0, rows + row},
             {scratch.of_cols, blocks.slabs, width, per_col, row > 0, cols + col},
             pieces.are_one ? use : Use{}, scratch, stream);
    }
  }
  if (pieces.are_one || !use.advances) return;
  finish(Join::none(pass.means.row), Join::none(pass.means.col), use, scratch, stream);
}

}  // namespace

void mean_squares(const AnyMatrix& r, const MeansPass& pass, float scale, StreamRef stream) {
  check_means("mean_squares", pass.means.row, pass.means.col, r);
  const Pieces pieces = Pieces::of(r.rows, r.cols);
  // The scans of several pieces would be several results.
  if (pass.scan != nullptr && !pieces.are_one) cuda::overflow_scan(r, pass.scan, stream);
  with_elements(r, [&](auto view) { means_of(view, pieces, pass, scale, stream); });
}

}  // namespace sluiceway::cuda
