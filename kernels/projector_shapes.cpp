#include "kernels/projector_shapes.h"

#include "kernels/base/check.h"

namespace sluiceway {

ScratchCutter::ScratchCutter(std::span<float> scratch) noexcept
    : next_(scratch.data()), left_(scratch.size()) {
  const std::size_t over = reinterpret_cast<std::uintptr_t>(next_) / sizeof(float) % kPadElems;
  const std::size_t skip = over == 0 ? 0 : static_cast<std::size_t>(kPadElems) - over;
  if (skip <= left_) {
    next_ += skip;
    left_ -= skip;
  }
}

float* ScratchCutter::take(std::int64_t elems) noexcept {
  float* const first = next_;
  next_ += cost(elems);
  left_ -= static_cast<std::size_t>(cost(elems));
  return first;
}

void check_shape(const char* function, const NamedShape& m, std::int64_t rows, std::int64_t cols) {
  SLUICEWAY_CHECK(m.rows == rows && m.cols == cols, function, ": ", m.name, " is ", m.rows, "x",
                  m.cols, ", expected ", rows, "x", cols);
  SLUICEWAY_CHECK(m.stride >= m.cols || m.rows <= 1, function, ": ", m.name, " has a stride of ",
                  m.stride, " elements, expected at least its ", m.cols, " columns");
}

void check_blocks(const char* function, const char* name, const BlockRows& p) {
  SLUICEWAY_CHECK(p.block > 0 && p.kept >= 0 && p.last_kept >= 0 && p.last_kept <= p.kept, function,
                  ": ", name, " keeps ", p.kept, " (last group: ", p.last_kept, ") of ", p.block,
                  " rows, expected the last group to keep at most as many as the others");
  const std::int64_t groups = p.groups();
  const std::int64_t cols = groups == 0 ? 0 : (groups - 1) * p.kept + p.last_kept;
  SLUICEWAY_CHECK(p.cols == cols, function, ": ", name, " is ", p.rows, "x", p.cols, ", expected ",
                  p.rows, "x", cols, " from its ", groups, " groups");
}

void check_weight(const char* function, const AnyMatrix& w, const MatrixView<std::uint16_t>& low,
                  const WeightUpdate& update, std::int64_t rows, std::int64_t cols) {
  check_shape(function, named("w", w), rows, cols);
  const bool residual = update.rounding == Rounding::kResidual;
  check_shape(function, named("low", low), residual ? rows : 0, residual ? cols : 0);
  SLUICEWAY_CHECK(update.rounding == Rounding::kNearest || w.dtype == DType::kBF16, function,
                  ": w is ", to_string(w.dtype), " with ", residual ? "residual" : "stochastic",
                  " rounding, expected bf16");
}

void check_means(const char* function, std::span<const float> rows, std::span<const float> cols,
                 const AnyMatrix& g) {
  const auto check = [function](const char* name, std::size_t size, std::int64_t expected) {
    SLUICEWAY_CHECK(static_cast<std::int64_t>(size) == expected, function, ": ", name, " has ",
                    size, " elements, expected ", expected);
  };
  check("rows", rows.size(), g.rows);
  check("cols", cols.size(), g.cols);
}

void check_scratch(const char* function, std::size_t elems, std::int64_t expected) {
  SLUICEWAY_CHECK(static_cast<std::int64_t>(elems) >= expected, function, ": scratch has ", elems,
                  " elements, expected ", expected);
}

}  // namespace sluiceway
