// Owned arrays for tests: a row-major matrix without padding, compared element by element.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "kernels/base/dtype.h"
#include "kernels/base/view.h"

namespace sluiceway::test {

template <typename T>
struct BasicMatrix {
  std::int64_t rows = 0;
  std::int64_t cols = 0;
  std::vector<T> v;

  BasicMatrix() = default;
  BasicMatrix(std::int64_t r, std::int64_t c)
      : rows(r), cols(c), v(static_cast<std::size_t>(r * c), T{}) {}

  T& operator()(std::int64_t i, std::int64_t j) {
    return v[static_cast<std::size_t>(i * cols + j)];
  }
  const T& operator()(std::int64_t i, std::int64_t j) const {
    return v[static_cast<std::size_t>(i * cols + j)];
  }
  MatrixView<T> view() { return {v.data(), rows, cols}; }
  MatrixView<const T> view() const { return {v.data(), rows, cols}; }

  friend bool operator==(const BasicMatrix&, const BasicMatrix&) = default;
};

using Matrix = BasicMatrix<float>;
using MatrixF64 = BasicMatrix<double>;  // References compute in this and return it.

// The same numbers in another storage type, each rounded to nearest once.
template <typename T>
BasicMatrix<T> rounded_to(const Matrix& m) {
  BasicMatrix<T> out(m.rows, m.cols);
  for (std::size_t i = 0; i < m.v.size(); ++i) out.v[i] = from_float<T>(m.v[i]);
  return out;
}

inline double to_f64(double x) { return x; }
inline double to_f64(float x) { return static_cast<double>(x); }
inline double to_f64(bf16 x) { return static_cast<double>(to_float(x)); }
inline double to_f64(f16 x) { return static_cast<double>(to_float(x)); }

// The exact value of every element, as input of a reference.
template <typename T>
MatrixF64 as_f64(const BasicMatrix<T>& m) {
  MatrixF64 out(m.rows, m.cols);
  for (std::size_t i = 0; i < m.v.size(); ++i) out.v[i] = to_f64(m.v[i]);
  return out;
}

}  // namespace sluiceway::test
