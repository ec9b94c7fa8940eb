#include "compress/projector.h"

#include <algorithm>
#include <cmath>

#include "kernels/base/check.h"
#include "kernels/sparse_columns.h"

namespace sluiceway {
namespace {

Buffer device_array(Budget& budget, std::int64_t elems, std::size_t elem_bytes) {
  return {budget,       Tier::kDevice, DeviceId{}, static_cast<std::size_t>(elems) * elem_bytes,
          "projectors", Fill::kNone};
}

std::span<std::int32_t> row_of(std::span<std::int32_t> x, std::int64_t row, std::int64_t nnz) {
  return x.subspan(static_cast<std::size_t>(row * nnz), static_cast<std::size_t>(nnz));
}

std::span<float> row_of(std::span<float> x, std::int64_t row, std::int64_t nnz) {
  return x.subspan(static_cast<std::size_t>(row * nnz), static_cast<std::size_t>(nnz));
}

std::int64_t rounded_share(double ratio, std::int64_t rows) noexcept {
  return std::clamp<std::int64_t>(std::llround(ratio * static_cast<double>(rows)), 1, rows);
}

}  // namespace

// ---- Sparse -------------------------------------------------------------------------------------

SparseProjector::Half::Half(std::int64_t row_count_, std::int64_t cols_, std::int64_t nnz_,
                            Budget& budget)
    : row_count(row_count_),
      cols(cols_),
      nnz(std::min(nnz_, cols_)),
      index(device_array(budget, row_count * nnz, sizeof(std::int32_t))),
      value(device_array(budget, row_count * nnz, sizeof(float))) {}

void SparseProjector::Half::draw(const DrawKey& key, DrawPurpose purpose, std::int64_t row_offset) {
  for (std::int64_t i = 0; i < row_count; ++i) {
    draw_sparse_row(key, purpose, row_offset + i, cols, row_of(index.as<std::int32_t>(), i, nnz),
                    row_of(value.as<float>(), i, nnz));
  }
}

SparseRows SparseProjector::Half::rows() const noexcept {
  return {index.as<std::int32_t>().data(), value.as<float>().data(), row_count, cols, nnz};
}

SparseProjector::SparseProjector(const ProjectorDims& dims, std::int64_t nnz, const DrawKey& key,
                                 Budget& budget)
    : dims_(dims),
      key_(key),
      p_(dims.m, dims.dm, nnz, budget),
      q_(dims.n, dims.dn, nnz, budget),
      column_offset_(device_array(budget, dims.dn + 1, sizeof(std::int32_t))),
      column_row_(device_array(budget, dims.n * q_.nnz, sizeof(std::int32_t))),
      column_value_(device_array(budget, dims.n * q_.nnz, sizeof(float))) {
  p_.draw(key, DrawPurpose::kSparseP, dims.row_offset);
  q_.draw(key, DrawPurpose::kSparseQ, 0);
  values_changed();
}

void SparseProjector::values_changed() {
  columns_ = sparse_columns(q(), column_offset_.as<std::int32_t>(), column_row_.as<std::int32_t>(),
                            column_value_.as<float>());
}

std::uint64_t SparseProjector::bytes(const ProjectorDims& dims, std::int64_t nnz) noexcept {
  const std::int64_t p_elems = dims.m * std::min(nnz, dims.dm);
  const std::int64_t q_elems = dims.n * std::min(nnz, dims.dn);
  return static_cast<std::uint64_t>(8 * p_elems + 16 * q_elems + 4 * (dims.dn + 1));
}

// ---- Blocks -------------------------------------------------------------------------------------

BlockRows block_layout(std::int64_t rows, std::int64_t block, double ratio) noexcept {
  BlockRows half;
  half.rows = rows;
  half.block = std::min(block, rows);
  half.kept = rounded_share(ratio, half.block);
  const std::int64_t full_groups = half.groups() - 1;
  half.last_kept = rounded_share(ratio, rows - full_groups * half.block);
  half.cols = full_groups * half.kept + half.last_kept;
  return half;
}

BlockProjector::Half::Half(const BlockRows& layout, Budget& budget)
    : value(budget, Tier::kDevice, DeviceId{},
            static_cast<std::size_t>(layout.rows * layout.kept) * sizeof(float), "projectors",
            Fill::kZero),
      view(layout) {
  view.value = value.as<float>().data();
}

void BlockProjector::Half::draw(const DrawKey& key, DrawPurpose purpose, std::int64_t first_group) {
  float* const first = value.as<float>().data();
  for (std::int64_t g = 0; g < view.groups(); ++g) {
    const bool last = g == view.groups() - 1;
    draw_orthonormal(key, purpose, first_group + g, last ? view.rows - g * view.block : view.block,
                     last ? view.last_kept : view.kept, first + g * view.block * view.kept,
                     view.kept);
  }
}

BlockProjector::BlockProjector(const BlockLayouts& layouts, Budget& budget, std::int64_t row_offset)
    : dims_{layouts.p.rows, layouts.q.rows, layouts.p.cols, layouts.q.cols, row_offset},
      p_(layouts.p, budget),
      q_(layouts.q, budget) {
  SLUICEWAY_CHECK(row_offset % layouts.p.block == 0, "BlockProjector: shard starts at row ",
                  row_offset, ", expected a multiple of the block, ", layouts.p.block, " rows");
}

void BlockProjector::draw(const DrawKey& key) {
  p_.draw(key, DrawPurpose::kBlockP, dims_.row_offset / p_.view.block);
  q_.draw(key, DrawPurpose::kBlockQ, 0);
}

}  // namespace sluiceway
