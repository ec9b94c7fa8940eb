#include "runtime/engine/subspace/core_moments.h"

#include <utility>

#include "kernels/base/check.h"
#include "kernels/factored_adam.h"
#include "kernels/residual.h"

namespace sluiceway {

CoreMoments::CoreMoments(const WeightSpec& spec, const CoreShape& core, DeviceId device,
                         Budget& budget)
    : core_(core), device_(device) {
  const Tier tier = spec.tier == CoreTier::kDevice ? Tier::kDevice : Tier::kHost;
  const auto floats = [&](std::int64_t elems, const char* what) {
    return Buffer(budget, tier, device, sizeof(float) * static_cast<std::size_t>(elems),
                  concat(what, " of ", spec.name));
  };
  const std::int64_t second = second_moment_elems(spec.second_moment, core);
  m_[0] = floats(core.elems(), "first moment");
  v_[0] = floats(second, "second moment");
  if (spec.second_moment == SecondMoment::kFactored) {
    roots_ = floats(second, "roots of the second moment");
  }
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

Moments CoreMoments::copy(int which) const noexcept {
  const auto at = static_cast<std::size_t>(which);
  Moments moments{{m_[at].as<float>().data(), core_.rows, core_.cols}, {}, {}};
  if (is_factored()) {
    moments.factored = FactoredMoment::of(v_[at].as<float>(), core_.rows);
  } else {
    moments.v = {v_[at].as<float>().data(), core_.rows, core_.cols};
  }
  return moments;
}

std::span<float> CoreMoments::second(int which) const noexcept {
  return v_[static_cast<std::size_t>(which)].as<float>();
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
  const FactoredMoment now = FactoredMoment::of(roots_.as<float>(), core_.rows);
  mean_squares({core.data, core.rows, core.cols, core.stride, dtype_of<T>}, now.row, now.col, scale,
               stream);
  sluiceway::advance(before.factored, now, hyper.beta2, 1.0, after.factored);
  const FactoredRoots roots =
      roots_of(after.factored, hyper.beta2, hyper.step, 1.0, hyper.eps, now);
  factored_adam_direction<T>(core, scale, before.m, after.m, roots, hyper,
                             {d.data(), core_.rows, core_.cols}, stream);
}

template void CoreMoments::advance(int, int, const AdamHyper&, float, std::span<float>,
                                   std::span<float>, StreamRef);
template void CoreMoments::advance(int, int, const AdamHyper&, float, std::span<bf16>,
                                   std::span<bf16>, StreamRef);

}  // namespace sluiceway
