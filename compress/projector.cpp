#include "compress/projector.h"

#include <algorithm>
#include <cmath>

#include "kernels/base/check.h"
#include "kernels/bias_norm.h"
#include "kernels/compress.h"
#include "kernels/compress_linear.h"
#include "kernels/decompress.h"
#include "kernels/decompress_range.h"
#include "kernels/sparse_columns.h"
#include "runtime/device/device_memory.h"

namespace sluiceway {
namespace {

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

// Copies arrays of 4-byte elements one after another; returns the unused end of `copy`.
std::span<float> copy_out(const ProjectorHome& home, const Buffer& from, std::span<float> copy) {
  home.copy(copy.data(), from.data(), from.size());
  return copy.subspan(from.size() / sizeof(float));
}

std::span<const float> copy_in(const ProjectorHome& home, Buffer& to, std::span<const float> copy) {
  home.copy(to.data(), copy.data(), to.size());
  return copy.subspan(to.size() / sizeof(float));
}

void copy_over(const ProjectorHome& home, Buffer& to, const Buffer& from) {
  home.copy(to.data(), from.data(), to.size());
}

// Returns the largest scratch that a call with this pair needs; compress reads a sparse Q by
// column.
template <typename Rows, typename QOfCompress>
std::size_t most_scratch(const Rows& p, const Rows& q, const QOfCompress& q_of_compress) {
  return static_cast<std::size_t>(
      std::max({compress_scratch_elems(p, q_of_compress), decompress_scratch_elems(p, q),
                bias_norm_scratch_elems(p, q)}));
}

// Returns the larger of the two sides' scratch for rows.
template <typename Rows>
std::size_t most_project_scratch(const Rows& p, const Rows& q) {
  return static_cast<std::size_t>(std::max(project_scratch_elems(p), project_scratch_elems(q)));
}

// Returns the shapes of such a pair, without arrays.
SparseProjector::Pair shapes_of(const ProjectorDims& dims, std::int64_t nnz) noexcept {
  return {{nullptr, nullptr, dims.m, dims.dm, std::min(nnz, dims.dm)},
          {nullptr, nullptr, dims.n, dims.dn, std::min(nnz, dims.dn)}};
}

}  // namespace

// ---- Memory -------------------------------------------------------------------------------------

ProjectorHome ProjectorHome::in_host_memory() const noexcept {
  ProjectorHome there = *this;
  there.tier_ = Tier::kHost;
  return there;
}

Buffer ProjectorHome::array(std::int64_t elems, std::size_t elem_bytes, Fill fill) const {
  return {*budget_,     tier_, device_, static_cast<std::size_t>(elems) * elem_bytes,
          "projectors", fill};
}

Buffer ProjectorHome::bring(std::span<const float> x) const {
  if (is_host() || x.empty()) return {};
  Buffer here = in_host_memory().array(std::ssize(x), sizeof(float));
  copy(here.data(), x.data(), here.size());
  return here;
}

void ProjectorHome::copy(void* dst, const void* src, std::size_t bytes) const {
  copy_device_bytes(is_host() ? DeviceId::host() : device_, dst, src, bytes);
}

void ProjectorHome::fill_zero(std::span<float> x) const {
  fill_device_bytes(is_host() ? DeviceId::host() : device_, x.data(), std::byte{0}, x.size_bytes());
}

// ---- Sparse -------------------------------------------------------------------------------------

ProjectorDims sparse_dims(const CodecConfig& config, std::int64_t m, std::int64_t n) {
  if (config.d > 0) return {.m = m, .n = n, .dm = config.d, .dn = config.d};
  return {.m = m, .n = n, .dm = share(config.ratio, m), .dn = share(config.ratio, n)};
}

SparseProjector::Half::Half(std::int64_t row_count_, std::int64_t cols_, std::int64_t nnz_each,
                            const ProjectorHome& home)
    : row_count(row_count_),
      cols(cols_),
      nnz(std::min(nnz_each, cols_)),
      index(home.array(row_count * nnz, sizeof(std::int32_t))),
      value(home.array(row_count * nnz, sizeof(float))) {}

void SparseProjector::Half::assign(const Half& from, const ProjectorHome& home) {
  copy_over(home, index, from.index);
  copy_over(home, value, from.value);
}

void SparseProjector::Half::draw(const DrawKey& key, DrawPurpose purpose, SparseInit init) {
  for (std::int64_t i = 0; i < row_count; ++i) {
    draw_sparse_row(key, purpose, i, cols, init, row_of(index.as<std::int32_t>(), i, nnz),
                    row_of(value.as<float>(), i, nnz));
  }
}

SparseRows SparseProjector::Half::rows() const noexcept {
  return {index.as<std::int32_t>().data(), value.as<float>().data(), row_count, cols, nnz};
}

SparseProjector::SparseProjector(const ProjectorDims& dims, std::int64_t nnz,
                                 const ProjectorHome& home)
    : dims_(dims),
      nnz_(nnz),
      home_(home),
      p_(dims.m, dims.dm, nnz, home),
      q_(dims.n, dims.dn, nnz, home),
      column_offset_(home.array(dims.dn + 1, sizeof(std::int32_t))),
      column_row_(home.array(dims.n * q_.nnz, sizeof(std::int32_t))),
      column_value_(home.array(dims.n * q_.nnz, sizeof(float))),
      columns_{column_offset_.as<std::int32_t>().data(),
               column_row_.as<std::int32_t>().data(),
               column_value_.as<float>().data(),
               dims.n,
               dims.dn,
               dims.n * q_.nnz} {}

SparseProjector::SparseProjector(const ProjectorDims& dims, std::int64_t nnz, const DrawKey& key,
                                 DeviceId device, Budget& budget)
    : SparseProjector(dims, nnz, ProjectorHome(device, budget)) {
  draw(key, SparseInit::kSign);
}

SparseProjector SparseProjector::on_host() const {
  SparseProjector here(dims_, nnz_, home_.in_host_memory());
  here.p_.assign(p_, home_);
  here.q_.assign(q_, home_);
  here.values_changed();
  return here;
}

void SparseProjector::assign(const SparseProjector& on_host) {
  p_.assign(on_host.p_, home_);
  q_.assign(on_host.q_, home_);
  copy_over(home_, column_offset_, on_host.column_offset_);
  copy_over(home_, column_row_, on_host.column_row_);
  copy_over(home_, column_value_, on_host.column_value_);
}

void SparseProjector::draw(const DrawKey& key, SparseInit init) {
  if (!home_.is_host()) {
    SparseProjector drawn(dims_, nnz_, home_.in_host_memory());
    drawn.draw(key, init);
    return assign(drawn);
  }
  p_.draw(key, DrawPurpose::kSparseP, init);
  q_.draw(key.of_q(), DrawPurpose::kSparseQ, init);
  values_changed();
}

void SparseProjector::values_changed() {
  if (!home_.is_host()) return assign(on_host());
  sparse_columns(q(), column_offset_.as<std::int32_t>(), column_row_.as<std::int32_t>(),
                 column_value_.as<float>());
}

void SparseProjector::keep(std::span<float> copy) const {
  copy = copy_out(home_, p_.value, copy_out(home_, p_.index, copy));
  copy_out(home_, q_.value, copy_out(home_, q_.index, copy));
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
  copy = copy_in(home_, p_.value, copy_in(home_, p_.index, copy));
  copy_in(home_, q_.value, copy_in(home_, q_.index, copy));
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

std::size_t SparseProjector::project_scratch_elems(const ProjectorDims& dims,
                                                   std::int64_t nnz) noexcept {
  const auto [p, q] = shapes_of(dims, nnz);
  return most_project_scratch(p, q);
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

std::size_t BlockLayouts::project_scratch_elems() const noexcept {
  return most_project_scratch(p, q);
}

BlockProjector::Half::Half(const BlockRows& layout, const ProjectorHome& home)
    : value(home.array(layout.rows * layout.kept, sizeof(float), Fill::kZero)), view(layout) {
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

BlockProjector::BlockProjector(const BlockLayouts& layouts, const ProjectorHome& home)
    : dims_{layouts.p.rows, layouts.q.rows, layouts.p.cols, layouts.q.cols},
      home_(home),
      p_(layouts.p, home),
      q_(layouts.q, home) {}

BlockProjector::BlockProjector(const BlockLayouts& layouts, DeviceId device, Budget& budget)
    : BlockProjector(layouts, ProjectorHome(device, budget)) {}

BlockProjector BlockProjector::on_host() const {
  BlockProjector here({p(), q()}, home_.in_host_memory());
  copy_over(home_, here.p_.value, p_.value);
  copy_over(home_, here.q_.value, q_.value);
  return here;
}

void BlockProjector::assign(const BlockProjector& on_host) {
  copy_over(home_, p_.value, on_host.p_.value);
  copy_over(home_, q_.value, on_host.q_.value);
}

void BlockProjector::draw(const DrawKey& key) {
  if (!home_.is_host()) return edit(*this, [&](BlockProjector& here) { here.draw(key); });
  p_.draw(key, DrawPurpose::kBlockP);
  q_.draw(key.of_q(), DrawPurpose::kBlockQ);
}

void BlockProjector::keep(std::span<float> copy) const {
  copy_out(home_, q_.value, copy_out(home_, p_.value, copy));
}

BlockLayouts BlockProjector::kept(std::span<const float> copy) const noexcept {
  BlockLayouts pair{p(), q()};
  pair.p.value = copy.data();
  pair.q.value = copy.data() + p_.value.as<float>().size();
  return pair;
}

void BlockProjector::restore(std::span<const float> copy) {
  if (copy.empty()) {
    for (const std::span<float> value : {p_value(), q_value()}) home_.fill_zero(value);
    return;
  }
  copy_in(home_, q_.value, copy_in(home_, p_.value, copy));
}

}  // namespace sluiceway
