#include "compress/random_draw.h"

#include <Eigen/QR>
#include <algorithm>
#include <array>
#include <cmath>
#include <numbers>

#include "kernels/base/check.h"

namespace sluiceway {
namespace {

// The words for one row or group: blocks [item * 2^16, (item + 1) * 2^16) of the key's Philox
// stream.
class WordSource {
 public:
  WordSource(const DrawKey& key, DrawPurpose purpose, std::int64_t item)
      : key_(philox_key(
            {key.seed, key.generation, key.weight_hash, static_cast<std::uint32_t>(purpose)})),
        tensor_(key.weight_hash),
        block_(static_cast<std::uint64_t>(item) << 16) {}

  std::uint32_t next() {
    if (used_ == words_.size()) {
      words_ = philox4x32_10(
          {static_cast<std::uint32_t>(block_), static_cast<std::uint32_t>(block_ >> 32),
           static_cast<std::uint32_t>(tensor_), static_cast<std::uint32_t>(tensor_ >> 32)},
          key_);
      ++block_;
      used_ = 0;
    }
    return words_[used_++];
  }

  // Returns a number in [0, bound); deviates from uniform by less than bound / 2^32.
  std::int64_t below(std::int64_t bound) {
    return static_cast<std::int64_t>(std::uint64_t{next()} * static_cast<std::uint64_t>(bound) >>
                                     32);
  }

  // Returns two independent standard normal numbers (Box-Muller).
  std::array<double, 2> normal_pair() {
    const double u = (next() + 1.0) * 0x1p-32;  // (0, 1].
    const double angle = 2 * std::numbers::pi * next() * 0x1p-32;
    const double radius = std::sqrt(-2 * std::log(u));
    return {radius * std::cos(angle), radius * std::sin(angle)};
  }

 private:
  PhiloxKey key_;
  std::uint64_t tensor_;
  std::uint64_t block_;
  PhiloxCounter words_{};
  std::size_t used_ = words_.size();
};

void fill_normal(WordSource& words, float scale, std::span<float> value) {
  for (std::size_t k = 0; k < value.size(); k += 2) {
    const std::array<double, 2> pair = words.normal_pair();
    value[k] = scale * static_cast<float>(pair[0]);
    if (k + 1 < value.size()) value[k + 1] = scale * static_cast<float>(pair[1]);
  }
}

}  // namespace

SparseInit parse_sparse_init(std::string_view name) {
  if (name == "sign") return SparseInit::kSign;
  if (name == "normal") return SparseInit::kNormal;
  throw InvalidArgument(concat("refresh: init is \"", name, "\", expected \"sign\" or \"normal\""));
}

void draw_sparse_row(const DrawKey& key, DrawPurpose purpose, std::int64_t row, std::int64_t cols,
                     SparseInit init, std::span<std::int32_t> index, std::span<float> value) {
  WordSource words(key, purpose, row);
  const auto nnz = static_cast<std::int64_t>(index.size());
  // Floyd's algorithm: round j adds a uniform element of [0, j], or j itself if that one is taken.
  auto end = index.begin();
  for (std::int64_t j = cols - nnz; j < cols; ++j) {
    const auto candidate = static_cast<std::int32_t>(words.below(j + 1));
    const bool taken = std::find(index.begin(), end, candidate) != end;
    *end++ = taken ? static_cast<std::int32_t>(j) : candidate;
  }
  std::sort(index.begin(), index.end());
  const float magnitude = 1.0F / std::sqrt(static_cast<float>(nnz));
  if (init == SparseInit::kNormal) return fill_normal(words, magnitude, value);
  std::uint32_t signs = 0;
  for (std::size_t k = 0; k < value.size(); ++k) {
    if (k % 32 == 0) signs = words.next();
    value[k] = (signs >> (k % 32) & 1U) != 0 ? magnitude : -magnitude;
  }
}

void draw_orthonormal(const DrawKey& key, DrawPurpose purpose, std::int64_t group,
                      std::int64_t rows, std::int64_t cols, float* value, std::int64_t stride) {
  WordSource words(key, purpose, group);
  Eigen::MatrixXd gaussian(rows, cols);
  double* const x = gaussian.data();
  for (Eigen::Index i = 0; i < gaussian.size(); i += 2) {
    const std::array<double, 2> pair = words.normal_pair();
    x[i] = pair[0];
    if (i + 1 < gaussian.size()) x[i + 1] = pair[1];
  }
  const Eigen::HouseholderQR<Eigen::MatrixXd> qr(gaussian);
  Eigen::MatrixXd q = Eigen::MatrixXd::Identity(rows, cols);
  q.applyOnTheLeft(qr.householderQ());
  for (std::int64_t c = 0; c < cols; ++c) {
    // The sign that makes the diagonal of R positive, which makes the distribution uniform.
    const double sign = qr.matrixQR()(c, c) < 0 ? -1.0 : 1.0;
    for (std::int64_t i = 0; i < rows; ++i) {
      value[i * stride + c] = static_cast<float>(sign * q(i, c));
    }
  }
}

}  // namespace sluiceway
