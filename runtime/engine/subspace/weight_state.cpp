#include "runtime/engine/subspace/weight_state.h"

#include <algorithm>

#include "kernels/base/check.h"
#include "runtime/device/device_memory.h"

namespace sluiceway {
namespace {

std::span<const float> residual_moments(const SubspaceWeight& weight) {
  return weight.residual ? weight.residual->moments() : std::span<const float>();
}

std::span<float> first_moment(const SubspaceWeight& weight) {
  return weight.moments.first(weight.moments.live());
}

std::span<float> second_moment(const SubspaceWeight& weight) {
  return weight.moments.second(weight.moments.live());
}

std::span<std::uint16_t> low_bits(const SubspaceWeight& weight) {
  const MatrixView<std::uint16_t> low = weight.low_bits();
  return {low.data, static_cast<std::size_t>(low.elems())};
}

// Returns the array in memory that the host can read.
template <typename T>
std::span<const T> readable(std::span<T> x, bool on_device, DeviceId device, WeightState& state) {
  if (!on_device || x.empty()) return x;
  const std::shared_ptr<std::byte[]> copy(new std::byte[x.size_bytes()]);
  copy_device_bytes(device, copy.get(), x.data(), x.size_bytes());
  state.copies.push_back(copy);
  return {reinterpret_cast<const T*>(copy.get()), x.size()};
}

template <typename T>
void write(std::span<const T> from, std::span<T> to, bool on_device, DeviceId device) {
  copy_device_bytes(on_device ? device : DeviceId::host(), to.data(), from.data(), to.size_bytes());
}

void check_size(const SubspaceWeight& weight, const char* what, std::size_t found,
                std::size_t expected, const char* options) {
  SLUICEWAY_CHECK(found == expected, "load_state_dict: ", what, " of ", weight.spec.name, " has ",
                  found, " elements, expected ", expected, "; ", options,
                  " must be the same as in the saved run");
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
  const CoreMoments& moments = weight.moments;
  const DeviceId device = weight.device;
  state.exp_avg = readable(first_moment(weight), moments.on_device(), device, state);
  state.exp_avg_sq = readable(second_moment(weight), moments.on_device(), device, state);
  state.codec = weight.codec->save();
  state.low_bits = readable(low_bits(weight), !device.is_host(), device, state);
  state.backwards = backwards;
  state.residual = readable(residual_moments(weight), !device.is_host(), device, state);
  state.residual_step = weight.residual ? weight.residual->steps() : 0;
  return state;
}

void check_state(const SubspaceWeight& weight, const WeightState& state) {
  const char* core = "each of codec, ratio and second_moment";
  check_size(weight, "exp_avg", state.exp_avg.size(), first_moment(weight).size(), core);
  check_size(weight, "exp_avg_sq", state.exp_avg_sq.size(), second_moment(weight).size(), core);
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
  const CoreMoments& moments = weight.moments;
  const DeviceId device = weight.device;
  write(state.exp_avg, first_moment(weight), moments.on_device(), device);
  write(state.exp_avg_sq, second_moment(weight), moments.on_device(), device);
  write(state.low_bits, low_bits(weight), !device.is_host(), device);
  if (weight.residual) weight.residual->load(state.residual_step, state.residual);
  weight.moments.set_steps(state.step);
}

}  // namespace sluiceway
