// perturb_low_rank() and materialise_low_rank() by types and by rows of factors, against the copy
// roof.
#include <vector>

#include "experiments/bench/against_roof.h"
#include "experiments/bench/staggered_array.h"
#include "kernels/low_rank.h"

namespace sluiceway::bench {
namespace {

constexpr std::int64_t kRows = 2048, kCols = 4096;
constexpr std::size_t kElems = kRows * kCols;

template <typename T>
AnyMatrix matrix_of(StaggeredArray<T>& x) {
  return {x.data(), kRows, kCols, kCols, dtype_of<T>};
}

class Factors {
 public:
  explicit Factors(std::int64_t rank)
      : rank_(rank), left_(floats(rank * kRows), 1e-3F), right_(floats(rank * kCols), 0.5F) {}

  LowRank product() {
    return {MatrixView<const float>(left_.data(), rank_, kRows),
            MatrixView<const float>(right_.data(), rank_, kCols)};
  }

 private:
  static std::size_t floats(std::int64_t count) { return static_cast<std::size_t>(count); }

  std::int64_t rank_;
  std::vector<float> left_, right_;  // Empty without rows.
};

// Rank 4, with rows of pending factors before it.
template <typename T>
void perturb_low_rank(benchmark::State& state) {
  StaggeredArray<T> w(kElems, from_float<T>(0.01F)), plus(kElems, T{}), minus(kElems, T{});
  Factors pending(state.range(0)), drawn(4);
  run_against_roof(state, 3.0 * sizeof(T) * kElems, &Roof::copy_gb_per_s, [&] {
    cpu::perturb_low_rank(matrix_of(w), matrix_of(plus), matrix_of(minus), pending.product(), 1.0F,
                          drawn.product(), 1e-3F);
  });
}

// The image of an f32 matrix.
template <typename T>
void materialise_low_rank(benchmark::State& state) {
  StaggeredArray<float> w(kElems, 0.01F);
  StaggeredArray<T> out(kElems, T{});
  Factors pending(state.range(0));
  run_against_roof(state, (4.0 + sizeof(T)) * kElems, &Roof::copy_gb_per_s, [&] {
    cpu::materialise_low_rank(matrix_of(w), matrix_of(out), pending.product(), 1.0F);
  });
}

BENCHMARK(perturb_low_rank<float>)->Arg(0)->Arg(4)->Arg(400)->UseManualTime();
BENCHMARK(perturb_low_rank<bf16>)->Arg(0)->Arg(4)->Arg(400)->UseManualTime();
BENCHMARK(materialise_low_rank<float>)->Arg(4)->UseManualTime();
BENCHMARK(materialise_low_rank<bf16>)->Arg(4)->UseManualTime();

}  // namespace
}  // namespace sluiceway::bench
