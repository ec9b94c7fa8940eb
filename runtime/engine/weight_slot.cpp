#include "runtime/engine/weight_slot.h"

#include "kernels/base/check.h"
#include "kernels/factored_adam.h"
#include "kernels/philox.h"
#include "kernels/residual.h"

namespace sluiceway {
WeightSlot::WeightSlot(WeightSpec weight_spec, DeviceId device, Budget& budget)
    : spec(std::move(weight_spec)),
      hash(stable_hash(spec.name)),
      plan(plan_weight(spec, false)),
      codec(make_codec(spec.codec, spec.rows, spec.cols, hash, device, budget)) {
  if (spec.residual != ResidualKind::kNone) {
    residual.emplace(spec.residual, spec.rows, spec.cols, device, budget, spec.name);
  }
  const auto core_bytes = static_cast<std::size_t>(core_elems()) * sizeof(float);
  const auto wire = static_cast<std::size_t>(plan.d2h_bytes);
  const auto buffer = [&](Tier tier, std::size_t bytes, const char* what) {
    return Buffer(budget, tier, device, bytes, concat(what, " of ", spec.name));
  };
  accumulator_ = buffer(Tier::kDevice, core_bytes, "core");
  if (spec.rounding == Rounding::kResidual) {
    const auto elems = static_cast<std::size_t>(spec.rows * spec.cols);
    low_ = buffer(Tier::kDevice, elems * sizeof(std::uint16_t), "low halves");
  }
  const Tier moments_tier = spec.tier == CoreTier::kDevice ? Tier::kDevice : Tier::kHost;
  m_[0] = buffer(moments_tier, core_bytes, "first moment");
  const std::size_t second_bytes =
      sizeof(float) * static_cast<std::size_t>(second_moment_elems(spec.second_moment, plan.core));
  v_[0] = buffer(moments_tier, second_bytes, "second moment");
  if (spec.second_moment == SecondMoment::kFactored) {
    roots_ = buffer(moments_tier, second_bytes, "roots of the second moment");
  }
  if (spec.tier == CoreTier::kDevice) {
    unpacked_ = buffer(Tier::kDevice, core_bytes, "direction");
    return;
  }
  gradient = buffer(Tier::kPinned, wire, "staged gradient");
  direction = buffer(Tier::kPinned, wire, "staged direction");
  arrived = buffer(Tier::kDevice, wire, "arrived direction");
  if (spec.wire != WireFormat::kF32) packed_ = buffer(Tier::kDevice, wire, "packed gradient");
  if (spec.wire == WireFormat::kInt8) unpacked_ = buffer(Tier::kDevice, core_bytes, "direction");
}

void WeightSlot::add_spare(DeviceId device, Budget& budget) {
  const auto core_bytes = static_cast<std::size_t>(core_elems()) * sizeof(float);
  Buffer m(budget, Tier::kHost, device, core_bytes, "spare first moment of " + spec.name);
  Buffer v(budget, Tier::kHost, device, v_[0].size(), "spare second moment of " + spec.name);
  m_[1] = std::move(m);
  v_[1] = std::move(v);
}

void WeightSlot::hold_gradient(Budget& budget) {
  if (plan.held_bytes == 0 || held_.bytes() != 0) return;
  held_ = budget.reserve(Tier::kDevice, plan.held_bytes, "the gradient of " + spec.name);
}

MatrixView<float> WeightSlot::core() const noexcept {
  return {accumulator_.as<float>().data(), plan.core.rows, plan.core.cols};
}

MatrixView<std::uint16_t> WeightSlot::low_bits() const noexcept {
  if (low_.size() == 0) return {};
  return {low_.as<std::uint16_t>().data(), spec.rows, spec.cols};
}

Moments WeightSlot::moments(int which) const noexcept {
  const auto at = static_cast<std::size_t>(which);
  Moments moments{{m_[at].as<float>().data(), plan.core.rows, plan.core.cols}, {}, {}};
  if (spec.second_moment == SecondMoment::kFactored) {
    moments.factored = FactoredMoment::of(v_[at].as<float>(), plan.core.rows);
  } else {
    moments.v = {v_[at].as<float>().data(), plan.core.rows, plan.core.cols};
  }
  return moments;
}

std::span<float> WeightSlot::second_moment(int which) const noexcept {
  return v_[static_cast<std::size_t>(which)].as<float>();
}

std::span<const std::byte> WeightSlot::outgoing() const noexcept {
  const Buffer& source = spec.wire == WireFormat::kF32 ? accumulator_ : packed_;
  return {source.data(), source.size()};
}

void WeightSlot::accumulate(const AnyMatrix& g, std::span<float> scratch, StreamRef stream) {
  codec->compress(g, backwards == 0 ? 0.0F : 1.0F, core(), scratch, stream);
  ++backwards;
  scanned = false;
  if (has_core()) return;
  overflow_scan(total, &scan_result, stream);  // Now: the residual uses the gradient up.
  scanned = true;
}

void WeightSlot::scan(bool pack) {
  const std::span<const float> values = accumulator_.as<const float>();
  if (pack && packed_.size() != 0) {
    scan_result = cpu::pack(spec.wire, values, {packed_.data(), packed_.size()});
  } else if (!scanned) {
    scan_result = cpu::overflow_scan(values);
  }
  scanned = true;
}

void WeightSlot::clear() noexcept {
  backwards = 0;
  scanned = false;
  submitted = false;
  residual_done = false;
  total = {};
  forecast.reset();
}

void WeightSlot::commit(int promised_backwards) noexcept {
  expected = promised_backwards > 0 ? promised_backwards : backwards;
  live = target;
  ++steps;
  clear();
}

std::size_t WeightSlot::scratch_elems() const noexcept { return codec->scratch_elems(); }

std::size_t WeightSlot::refresh_scratch_elems() const noexcept {
  return codec->refresh_scratch_elems();
}

std::size_t WeightSlot::host_scratch_elems() const noexcept {
  return spec.wire == WireFormat::kInt8 ? 2 * static_cast<std::size_t>(core_elems()) : 0;
}

template <typename T>
void WeightSlot::advance_core(std::span<T> g, int from, int to, const AdamHyper& hyper, float scale,
                              std::span<T> d) {
  const auto f = static_cast<std::size_t>(from);
  const auto t = static_cast<std::size_t>(to);
  if (spec.second_moment == SecondMoment::kFull) {
    const AdamMoments both{m_[f].as<const float>(), v_[f].as<const float>(), m_[t].as<float>(),
                           v_[t].as<float>()};
    cpu::adam_direction(std::span<const T>(g), scale, both, hyper, d);
    return;
  }
  const Moments before = moments(from), after = moments(to);
  const MatrixView<T> core(g.data(), plan.core.rows, plan.core.cols);
  const FactoredMoment now = FactoredMoment::of(roots_.as<float>(), plan.core.rows);
  cpu::mean_squares({core.data, core.rows, core.cols, core.stride, dtype_of<T>}, now.row, now.col,
                    scale);
  advance(before.factored, now, hyper.beta2, 1.0, after.factored);
  const FactoredRoots roots =
      roots_of(after.factored, hyper.beta2, hyper.step, 1.0, hyper.eps, now);
  cpu::factored_adam_direction<T>(core, scale, before.m, after.m, roots, hyper,
                                  {d.data(), plan.core.rows, plan.core.cols});
}

void WeightSlot::update_core(int from, int to, const AdamHyper& hyper, float scale,
                             std::span<float> scratch) {
  const auto advance_f32 = [&](std::span<float> g, std::span<float> d) {
    advance_core(g, from, to, hyper, scale, d);
  };
  if (spec.tier == CoreTier::kDevice) {
    return advance_f32(accumulator_.as<float>(), unpacked_.as<float>());
  }
  switch (spec.wire) {
    case WireFormat::kF32:
      return advance_f32(gradient.as<float>(), direction.as<float>());
    case WireFormat::kBF16:
      return advance_core(gradient.as<bf16>(), from, to, hyper, scale, direction.as<bf16>());
    case WireFormat::kInt8: {
      const auto elems = static_cast<std::size_t>(core_elems());
      const std::span<float> g = scratch.first(elems);
      const std::span<float> d = scratch.subspan(elems, elems);
      cpu::unpack(spec.wire, gradient.as<const std::byte>(), g);
      advance_f32(g, d);
      cpu::pack(spec.wire, d, direction.as<std::byte>());
    }
  }
}

void WeightSlot::apply_residual(const AnyMatrix& whole, const AnyMatrix& w,
                                const ResidualStep& step, std::span<float> scratch,
                                StreamRef stream) {
  residual->apply(*codec, whole, core(), w, low_bits(), step, scratch, stream);
}

void WeightSlot::apply(std::span<float> scratch, StreamRef stream) {
  if (residual_due) apply_residual(residual_gradient, weight, residual_step, scratch, stream);
  if (!has_core()) return;
  AnyMatrix d{arrived.data(), plan.core.rows, plan.core.cols, plan.core.cols, DType::kF32};
  if (spec.tier == CoreTier::kDevice || spec.wire == WireFormat::kInt8) {
    d.data = unpacked_.data();
    if (spec.tier == CoreTier::kHost) {
      unpack(spec.wire, arrived.as<const std::byte>(), unpacked_.as<float>(), stream);
    }
  } else if (spec.wire == WireFormat::kBF16) {
    d.dtype = DType::kBF16;
  }
  codec->apply(weight, low_bits(), d, update, scratch, stream);
}

}  // namespace sluiceway
