#include "runtime/engine/subspace/core_moments.h"

#include <utility>

#include "kernels/base/check.h"
#include "kernels/factored_adam.h"
#include "kernels/factored_moment.h"
#include "kernels/residual.h"
#include "runtime/device/device_memory.h"

namespace sluiceway {

CoreMoments::CoreMoments(const WeightSpec& spec, const CoreShape& core, DeviceId device,
                         Budget& budget)
    : core_(core),
      device_(device),
      on_device_(spec.tier == CoreTier::kDevice && !device.is_host()) {
  const Tier tier = spec.tier == CoreTier::kDevice ? Tier::kDevice : Tier::kHost;
  const bool factored = spec.second_moment == SecondMoment::kFactored;
  const auto floats = [&](Tier where, std::int64_t elems, const char* what) {
    return Buffer(budget, where, device, sizeof(float) * static_cast<std::size_t>(elems),
                  concat(what, " of ", spec.name));
  };
  m_[0] = floats(tier, core.elems(), "first moment");
  const std::int64_t second = second_moment_elems(spec.second_moment, core);
  v_[0] = floats(tier, second, "second moment");
  if (factored) roots_ = floats(tier, second, "roots of the second moment");
}

void CoreMoments::add_spare(Budget& budget, std::string_view weight_name) {
  Buffer m(budget, Tier::kHost, device_, m_[0].size(),
           concat("spare first moment of ", weight_name));
  Buffer v(budget, Tier::kHost, device_, v_[0].size(),
           concat("spare second moment of ", weight_name));
  m_[1] = std::move(m);
  v_[1] = std::move(v);
}

bool CoreMoments::has_spare() const noexcept { return m_[1].size() == m_[0].size(); }

void CoreMoments::commit(int written) noexcept {
  live_ = written;
  ++steps_;
}

Moments CoreMoments::view_of(std::span<float> m, std::span<float> v) const noexcept {
  Moments moments{{m.data(), core_.rows, core_.cols}, {}, {}};
  if (is_factored()) {
    moments.factored = FactoredMoment::of(v, core_.rows);
  } else {
    moments.v = {v.data(), core_.rows, core_.cols};
  }
  return moments;
}

Moments CoreMoments::copy(int which) const noexcept { return view_of(first(which), second(which)); }

std::span<float> CoreMoments::first(int which) const noexcept {
  return m_[static_cast<std::size_t>(which)].as<float>();
}

std::span<float> CoreMoments::second(int which) const noexcept {
  return v_[static_cast<std::size_t>(which)].as<float>();
}

CoreMoments::HostCopy::HostCopy(CoreMoments& of, int which)
    : of_(of), which_(which), m_(of.first(which).size()), v_(of.second(which).size()) {
  copy_device_bytes(of.device_, m_.data(), of.first(which).data(), of.first(which).size_bytes());
  copy_device_bytes(of.device_, v_.data(), of.second(which).data(), of.second(which).size_bytes());
}

void CoreMoments::HostCopy::store() {
  const std::span<float> m = of_.first(which_), v = of_.second(which_);
  copy_device_bytes(of_.device_, m.data(), m_.data(), m.size_bytes());
  copy_device_bytes(of_.device_, v.data(), v_.data(), v.size_bytes());
}

template <typename T>
void CoreMoments::advance(int from, int to, const AdamHyper& hyper, float scale, std::span<T> g,
                          std::span<T> d, StreamRef stream) {
  const auto f = static_cast<std::size_t>(from);
  const auto t = static_cast<std::size_t>(to);
  if (!is_factored()) {
    const AdamMoments both{m_[f].as<const float>(), v_[f].as<const float>(), m_[t].as<float>(),
                           v_[t].as<float>()};
    adam_direction(std::span<const T>(g), scale, both, hyper, d, stream);
    return;
  }
  const Moments before = copy(from), after = copy(to);
  const MatrixView<T> core(g.data(), core_.rows, core_.cols);
  const MeansPass pass{.means = FactoredMoment::of(roots_.as<float>(), core_.rows),
                       .from = before.factored,
                       .to = after.factored,
                       .step = {.beta2 = hyper.beta2, .eps = hyper.eps, .step = hyper.step}};
  mean_squares({core.data, core.rows, core.cols, core.stride, dtype_of<T>}, pass, scale, stream);
  factored_adam_direction<T>(core, scale, before.m, after.m, pass.roots(), hyper,
                             {d.data(), core_.rows, core_.cols}, stream);
}

template void CoreMoments::advance(int, int, const AdamHyper&, float, std::span<float>,
                                   std::span<float>, StreamRef);
template void CoreMoments::advance(int, int, const AdamHyper&, float, std::span<bf16>,
                                   std::span<bf16>, StreamRef);

}  // namespace sluiceway
