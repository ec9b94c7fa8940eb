#include "compress/projector.h"

#include <algorithm>
#include <cmath>
#include <cstring>

#include "kernels/base/check.h"
#include "kernels/bias_norm.h"
#include "kernels/compress.h"
#include "kernels/decompress.h"
#include "kernels/decompress_range.h"
#include "kernels/sparse_columns.h"

namespace sluiceway {
namespace {

Buffer device_array(DeviceId device, Budget& budget, std::int64_t elems, std::size_t elem_bytes,
                    Fill fill = Fill::kNone) {
  if (!device.is_host()) {
    throw Unavailable(concat("projectors: on ", to_string(device),
                             ", expected the host device: this version draws them in host memory"));
  }
  return {budget,       Tier::kDevice, device, static_cast<std::size_t>(elems) * elem_bytes,
          "projectors", fill};
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

std::int64_t share(double ratio, std::int64_t size) {
  return std::max<std::int64_t>(1, std::llround(ratio * static_cast<double>(size)));
}

// Arrays of 4 bytes an element, one after the other: returns what is left of `copy`.
std::span<float> copy_out(const Buffer& from, std::span<float> copy) {
  std::memcpy(copy.data(), from.data(), from.size());
  return copy.subspan(from.size() / sizeof(float));
}

std::span<const float> copy_in(Buffer& to, std::span<const float> copy) {
  std::memcpy(to.data(), copy.data(), to.size());
  return copy.subspan(to.size() / sizeof(float));
}

// The most scratch that a call with this pair needs; compress reads a sparse Q by column.
template <typename Rows, typename QOfCompress>
std::size_t most_scratch(const Rows& p, const Rows& q, const QOfCompress& q_of_compress) {
  return static_cast<std::size_t>(
      std::max({compress_scratch_elems(p, q_of_compress), decompress_scratch_elems(p, q),
                bias_norm_scratch_elems(p, q)}));
}

// Such a pair without its arrays.
SparseProjector::Pair shapes_of(const ProjectorDims& dims, std::int64_t nnz) noexcept {
  return {{nullptr, nullptr, dims.m, dims.dm, std::min(nnz, dims.dm)},
          {nullptr, nullptr, dims.n, dims.dn, std::min(nnz, dims.dn)}};
}

}  // namespace

// ---- Sparse -------------------------------------------------------------------------------------

ProjectorDims sparse_dims(const CodecConfig& config, std::int64_t m, std::int64_t n) {
  if (config.d > 0) return {.m = m, .n = n, .dm = config.d, .dn = config.d};
  return {.m = m, .n = n, .dm = share(config.ratio, m), .dn = share(config.ratio, n)};
}

SparseProjector::Half::Half(std::int64_t row_count_, std::int64_t cols_, std::int64_t nnz_,
                            DeviceId device, Budget& budget)
    : row_count(row_count_),
      cols(cols_),
      nnz(std::min(nnz_, cols_)),
      index(device_array(device, budget, row_count * nnz, sizeof(std::int32_t))),
      value(device_array(device, budget, row_count * nnz, sizeof(float))) {}

void SparseProjector::Half::draw(const DrawKey& key, DrawPurpose purpose, SparseInit init) {
  for (std::int64_t i = 0; i < row_count; ++i) {
    draw_sparse_row(key, purpose, i, cols, init, row_of(index.as<std::int32_t>(), i, nnz),
                    row_of(value.as<float>(), i, nnz));
  }
}

SparseRows SparseProjector::Half::rows() const noexcept {
  return {index.as<std::int32_t>().data(), value.as<float>().data(), row_count, cols, nnz};
}

SparseProjector::SparseProjector(const ProjectorDims& dims, std::int64_t nnz, const DrawKey& key,
                                 DeviceId device, Budget& budget)
    : dims_(dims),
      p_(dims.m, dims.dm, nnz, device, budget),
      q_(dims.n, dims.dn, nnz, device, budget),
      column_offset_(device_array(device, budget, dims.dn + 1, sizeof(std::int32_t))),
      column_row_(device_array(device, budget, dims.n * q_.nnz, sizeof(std::int32_t))),
      column_value_(device_array(device, budget, dims.n * q_.nnz, sizeof(float))) {
  draw(key, SparseInit::kSign);
}

void SparseProjector::draw(const DrawKey& key, SparseInit init) {
  p_.draw(key, DrawPurpose::kSparseP, init);
  q_.draw(key, DrawPurpose::kSparseQ, init);
  values_changed();
}

void SparseProjector::values_changed() {
  columns_ = sparse_columns(q(), column_offset_.as<std::int32_t>(), column_row_.as<std::int32_t>(),
                            column_value_.as<float>());
}

void SparseProjector::keep(std::span<float> copy) const {
  copy = copy_out(p_.value, copy_out(p_.index, copy));
  copy_out(q_.value, copy_out(q_.index, copy));
}

SparseProjector::Pair SparseProjector::kept(std::span<const float> copy) const noexcept {
  const auto half = [&copy](SparseRows rows) {
    const auto elems = static_cast<std::size_t>(rows.rows * rows.nnz);
    rows.index = reinterpret_cast<const std::int32_t*>(copy.data());
    rows.value = copy.data() + elems;
    copy = copy.subspan(2 * elems);
    return rows;
  };
  const SparseRows p_rows = half(p());
  return {p_rows, half(q())};
}

void SparseProjector::restore(std::span<const float> copy) {
  copy = copy_in(p_.value, copy_in(p_.index, copy));
  copy_in(q_.value, copy_in(q_.index, copy));
  values_changed();
}

std::uint64_t SparseProjector::bytes(const ProjectorDims& dims, std::int64_t nnz) noexcept {
  const std::int64_t p_elems = dims.m * std::min(nnz, dims.dm);
  const std::int64_t q_elems = dims.n * std::min(nnz, dims.dn);
  return static_cast<std::uint64_t>(8 * p_elems + 16 * q_elems + 4 * (dims.dn + 1));
}

std::size_t SparseProjector::kept_elems(const ProjectorDims& dims, std::int64_t nnz) noexcept {
  return static_cast<std::size_t>(
      2 * (dims.m * std::min(nnz, dims.dm) + dims.n * std::min(nnz, dims.dn)));
}

std::size_t SparseProjector::scratch_elems(const ProjectorDims& dims, std::int64_t nnz) noexcept {
  const auto [p, q] = shapes_of(dims, nnz);
  return most_scratch(p, q, SparseColumns{nullptr, nullptr, nullptr, dims.n, dims.dn});
}

std::size_t SparseProjector::range_scratch_elems(const ProjectorDims& dims,
                                                 std::int64_t nnz) noexcept {
  const auto [p, q] = shapes_of(dims, nnz);
  return static_cast<std::size_t>(decompress_range_scratch_elems(p, q));
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

std::size_t BlockLayouts::scratch_elems() const noexcept { return most_scratch(p, q, q); }

std::size_t BlockLayouts::range_scratch_elems() const noexcept {
  return static_cast<std::size_t>(decompress_range_scratch_elems(p, q));
}

BlockProjector::Half::Half(const BlockRows& layout, DeviceId device, Budget& budget)
    : value(device_array(device, budget, layout.rows * layout.kept, sizeof(float), Fill::kZero)),
      view(layout) {
  view.value = value.as<float>().data();
}

void BlockProjector::Half::draw(const DrawKey& key, DrawPurpose purpose) {
  float* const first = value.as<float>().data();
  for (std::int64_t g = 0; g < view.groups(); ++g) {
    const bool last = g == view.groups() - 1;
    draw_orthonormal(key, purpose, g, last ? view.rows - g * view.block : view.block,
                     last ? view.last_kept : view.kept, first + g * view.block * view.kept,
                     view.kept);
  }
}

BlockProjector::BlockProjector(const BlockLayouts& layouts, DeviceId device, Budget& budget)
    : dims_{layouts.p.rows, layouts.q.rows, layouts.p.cols, layouts.q.cols},
      p_(layouts.p, device, budget),
      q_(layouts.q, device, budget) {}

void BlockProjector::draw(const DrawKey& key) {
  p_.draw(key, DrawPurpose::kBlockP);
  q_.draw(key, DrawPurpose::kBlockQ);
}

void BlockProjector::keep(std::span<float> copy) const {
  copy_out(q_.value, copy_out(p_.value, copy));
}

BlockLayouts BlockProjector::kept(std::span<const float> copy) const noexcept {
  BlockLayouts pair{p(), q()};
  pair.p.value = copy.data();
  pair.q.value = copy.data() + p_.value.as<float>().size();
  return pair;
}

void BlockProjector::restore(std::span<const float> copy) {
  if (copy.empty()) {
    for (const std::span<float> value : {p_value(), q_value()}) {
      std::fill(value.begin(), value.end(), 0.0F);
    }
    return;
  }
  copy_in(q_.value, copy_in(p_.value, copy));
}

}  // namespace sluiceway
