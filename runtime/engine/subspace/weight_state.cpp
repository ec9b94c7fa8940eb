#include "runtime/engine/subspace/weight_state.h"

#include <algorithm>

#include "kernels/base/check.h"

namespace sluiceway {
namespace {

std::span<const float> residual_moments(const SubspaceWeight& weight) {
  return weight.residual ? weight.residual->moments() : std::span<const float>();
}

std::span<float> first_moment(const SubspaceWeight& weight) {
  const MatrixView<float> m = weight.moments.copy(weight.moments.live()).m;
  return {m.data, static_cast<std::size_t>(m.elems())};
}

std::span<std::uint16_t> low_bits(const SubspaceWeight& weight) {
  const MatrixView<std::uint16_t> low = weight.low_bits();
  return {low.data, static_cast<std::size_t>(low.elems())};
}

void check_size(const SubspaceWeight& weight, const char* what, std::size_t found,
                std::size_t expected, const char* options) {
  SLUICEWAY_CHECK(found == expected, "load_state_dict: ", what, " of ", weight.spec.name, " has ",
                  found, " elements, expected ", expected, "; ", options,
                  " must be that of the saved run");
}

void check_count(const SubspaceWeight& weight, const char* what, std::int64_t found,
                 std::int64_t least) {
  SLUICEWAY_CHECK(found >= least, "load_state_dict: ", what, " of ", weight.spec.name, " is ",
                  found, ", expected ", least, " or more");
}

}  // namespace

WeightState save_state(const SubspaceWeight& weight, int backwards) {
  WeightState state;
  state.step = weight.moments.steps();
  state.exp_avg = first_moment(weight);
  state.exp_avg_sq = weight.moments.second(weight.moments.live());
  state.codec = weight.codec->save();
  state.low_bits = low_bits(weight);
  state.backwards = backwards;
  state.residual = residual_moments(weight);
  state.residual_step = weight.residual ? weight.residual->steps() : 0;
  return state;
}

void check_state(const SubspaceWeight& weight, const WeightState& state) {
  const char* core = "each of codec, ratio and second_moment";
  check_size(weight, "exp_avg", state.exp_avg.size(), first_moment(weight).size(), core);
  check_size(weight, "exp_avg_sq", state.exp_avg_sq.size(),
             weight.moments.second(weight.moments.live()).size(), core);
  check_size(weight, "low_bits", state.low_bits.size(), low_bits(weight).size(), "weight_update");
  check_size(weight, "residual", state.residual.size(), residual_moments(weight).size(),
             "residual");
  check_count(weight, "step", state.step, 0);
  check_count(weight, "backwards", state.backwards, 1);
  check_count(weight, "residual_step", state.residual_step, 0);
  weight.codec->check(state.codec);
}

void load_state(SubspaceWeight& weight, const WeightState& state) {
  check_state(weight, state);
  weight.codec->load(state.codec);
  std::ranges::copy(state.exp_avg, first_moment(weight).begin());
  std::ranges::copy(state.exp_avg_sq, weight.moments.second(weight.moments.live()).begin());
  std::ranges::copy(state.low_bits, low_bits(weight).begin());
  if (weight.residual) weight.residual->load(state.residual_step, state.residual);
  weight.moments.set_steps(state.step);
}

}  // namespace sluiceway
