#include "kernels/cuda/launch.cuh"
#include "kernels/cuda/row_col_sum.cuh"
#include "kernels/cuda/stream_scratch.cuh"
#include "kernels/factored_moment.h"

namespace sluiceway::cuda {
namespace {

struct RowsAndCols {  // A vector of rows, and behind it one of columns.
  float *row, *col;
  std::int64_t rows;

  static RowsAndCols of(const FactoredMoment& moment) {
    return {moment.row.data(), moment.col.data(), static_cast<std::int64_t>(moment.row.size())};
  }
  __device__ float& operator[](std::int64_t i) const { return i < rows ? row[i] : col[i - rows]; }
};

struct MomentPass {
  RowsAndCols from, means, to;
  std::int64_t elems;
  MomentStep step;

  __device__ float operator()(std::int64_t i) const {
    return advanced_mean(step, from[i], means[i]);
  }
};

struct MomentTotals {  // What the roots of every element have in common.
  double mean_row, correction;
  bool finite;
};

constexpr std::size_t kTotalsAt = kRowColLimits.most * sizeof(RowColSum);  // Behind the parts.
static_assert(kTotalsAt + sizeof(MomentTotals) <= kStreamPartsBytes);

// Nothing of the moment is written before its mean is known, so the second kernel advances it again
// to the same bits. Loads as sum_of_thread() has them. Roof: 8 (m + n) bytes, which the
// second-level cache has; 5 flop in double an element.
__global__ void sum_moment(MomentPass pass, ResidualVerdict* verdict, unsigned* ticket,
                           RowColSum* parts, MomentTotals* totals) {
  if (verdict != nullptr && !verdict->trains) return;
  const RowColSum mine = sum_of_thread(pass.from.rows, pass.elems, pass);
  RowColSum sum;
  if (!sum_of_grid(mine, ticket, parts, sum)) return;
  const std::int64_t t = verdict != nullptr ? verdict->steps + 1 : pass.step.step;
  if (verdict != nullptr) verdict->steps = t;
  totals->mean_row = sum.row / static_cast<double>(pass.from.rows);
  const double mean_col = sum.col / static_cast<double>(pass.elems - pass.from.rows);
  totals->finite = is_finite(totals->mean_row) && is_finite(mean_col);
  totals->correction = 1.0 - pow(pass.step.beta2, static_cast<double>(t));
}

// One element a thread. Roof: 16 (m + n) bytes; a division and a root in double an element.
__global__ void write_roots(MomentPass pass, const ResidualVerdict* verdict,
                            const MomentTotals* totals) {
  if (verdict != nullptr && !verdict->trains) return;
  const std::int64_t i = std::int64_t{blockIdx.x} * blockDim.x + threadIdx.x;
  if (i >= pass.elems) return;
  const bool is_row = i < pass.from.rows;
  const float advanced = pass(i);
  float root = is_row ? __uint_as_float(0x7F800000U) : 1.0F;
  if (totals->finite && is_row) {
    root = static_cast<float>(sqrt(row_share(advanced, totals->mean_row)) / pass.step.factor);
  } else if (totals->finite) {
    root = static_cast<float>(sqrt(static_cast<double>(advanced) / totals->correction));
  }
  pass.to[i] = advanced;
  pass.means[i] = root;
}

}  // namespace

void advance_moment(const FactoredMoment& from, const FactoredMoment& means, const MomentStep& step,
                    const FactoredMoment& to, ResidualVerdict* verdict, StreamRef stream) {
  check_moment(from, means, to);
  const auto elems = static_cast<std::int64_t>(means.row.size() + means.col.size());
  const MomentPass pass{RowsAndCols::of(from), RowsAndCols::of(means), RowsAndCols::of(to), elems,
                        step};
  const StreamScratch scratch(stream);
  auto* const totals = reinterpret_cast<MomentTotals*>(scratch.parts<std::byte>() + kTotalsAt);
  launch("advance_moment", Kernel<sum_moment>(), {row_col_blocks(elems), kMaxThreads}, stream, pass,
         verdict, scratch.ticket(), scratch.parts<RowColSum>(), totals);
  const auto blocks = static_cast<unsigned>((elems + kMaxThreads - 1) / kMaxThreads);
  launch("advance_moment", Kernel<write_roots>(), {blocks, kMaxThreads}, stream, pass, verdict,
         totals);
}

}  // namespace sluiceway::cuda
