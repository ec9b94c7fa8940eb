// perturb() by the family of its noise, the types and the pending updates, against the copy roof.
#include <hwy/highway.h>

#include "experiments/bench/against_roof.h"
#include "experiments/bench/staggered_array.h"
#include "kernels/perturb.h"

namespace sluiceway::bench {
namespace {

constexpr std::size_t kElems = std::size_t{8} << 20;

template <typename T>
void perturb_with(benchmark::State& state, NoiseFamily family, std::size_t pending) {
  const StaggeredArray<T> w(kElems, from_float<T>(0.01F));
  StaggeredArray<T> plus(kElems, T{}), minus(kElems, T{});
  std::vector<PendingUpdate> updates(pending);
  for (std::size_t k = 0; k < pending; ++k) updates[k] = {{1, k, 3, 4}, 1e-6F};
  run_against_roof(state, 3.0 * sizeof(T) * kElems, &Roof::copy_gb_per_s, [&] {
    cpu::perturb(std::as_bytes(w.view()), dtype_of<T>, std::as_writable_bytes(plus.span()),
                 std::as_writable_bytes(minus.span()), dtype_of<T>,
                 {.family = family, .pending = updates}, {1, 5000, 3, 4}, 1e-3F);
  });
}

template <typename T, NoiseFamily kFamily>
void perturb(benchmark::State& state) {
  perturb_with<T>(state, kFamily, static_cast<std::size_t>(state.range(0)));
}

// Runs one of the instruction sets that this processor has.
void perturb_rademacher_on(benchmark::State& state, std::int64_t target) {
  hwy::SetSupportedTargetsForTest(target);
  hwy::GetChosenTarget().Update(hwy::SupportedTargets());
  perturb_with<float>(state, NoiseFamily::kRademacher, 0);
  hwy::SetSupportedTargetsForTest(0);
  hwy::GetChosenTarget().DeInit();
}

BENCHMARK(perturb<float, NoiseFamily::kRademacher>)->Arg(0)->Arg(16)->UseManualTime();
BENCHMARK(perturb<bf16, NoiseFamily::kRademacher>)->Arg(0)->Arg(16)->UseManualTime();
BENCHMARK(perturb<float, NoiseFamily::kByteQuantile>)->Arg(0)->UseManualTime();
BENCHMARK(perturb<float, NoiseFamily::kGaussian>)->Arg(0)->UseManualTime();

const bool registered = [] {
  for (std::int64_t left = hwy::SupportedTargets() & HWY_TARGETS; left != 0; left &= left - 1) {
    const std::int64_t target = left & -left;
    benchmark::RegisterBenchmark(
        (std::string("perturb_rademacher/") + hwy::TargetName(target)).c_str(),
        [target](benchmark::State& state) { perturb_rademacher_on(state, target); })
        ->UseManualTime();
  }
  return true;
}();

}  // namespace
}  // namespace sluiceway::bench
