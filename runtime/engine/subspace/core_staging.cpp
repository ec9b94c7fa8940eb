#include "runtime/engine/subspace/core_staging.h"

#include <cstring>

#include "kernels/base/check.h"
#include "kernels/wire.h"

namespace sluiceway {
namespace {

constexpr std::size_t kZeroFlagBytes = 1;

}  // namespace

CoreStaging::CoreStaging(const WeightSpec& spec, const WeightPlan& plan, DeviceId device,
                         Budget& budget)
    : shape_(plan.core), wire_(spec.wire), tier_(spec.tier) {
  const auto buffer = [&](Tier tier, std::size_t bytes, const char* what) {
    return Buffer(budget, tier, device, bytes, concat(what, " of ", spec.name));
  };
  const std::size_t core_bytes = elems() * sizeof(float);
  core_ = buffer(Tier::kDevice, core_bytes, "core");
  if (tier_ == CoreTier::kDevice) {
    unpacked_ = buffer(Tier::kDevice, core_bytes, "direction");
    return;
  }
  const auto wire = static_cast<std::size_t>(plan.d2h_bytes);
  gradient_ = buffer(Tier::kPinned, wire, "staged gradient");
  direction_ = buffer(Tier::kPinned, wire, "staged direction");
  arrived_ = buffer(Tier::kDevice, wire, "arrived direction");
  if (wire_ != WireFormat::kF32) packed_ = buffer(Tier::kDevice, wire, "packed gradient");
  if (wire_ == WireFormat::kInt8) unpacked_ = buffer(Tier::kDevice, core_bytes, "direction");
}

MatrixView<float> CoreStaging::core() const noexcept {
  return {core_.as<float>().data(), shape_.rows, shape_.cols};
}

void CoreStaging::scan(ScanResult* result, StreamRef stream) const {
  overflow_scan(core_.as<const float>(), result, stream);
}

void CoreStaging::pack(ScanResult* result, StreamRef stream) {
  sluiceway::pack(wire_, core_.as<const float>(), packed_.as<std::byte>(), result, stream);
}

std::span<const std::byte> CoreStaging::outgoing(bool zero) const noexcept {
  const Buffer& source = wire_ == WireFormat::kF32 ? core_ : packed_;
  return {source.data(), zero ? kZeroFlagBytes : source.size()};
}

void CoreStaging::arrive_as_zero() noexcept {
  std::memset(gradient_.data(), 0, gradient_.size());  // Zeros in every wire format.
}

AnyMatrix CoreStaging::direction_on_device(StreamRef stream) {
  AnyMatrix d{arrived_.data(), shape_.rows, shape_.cols, shape_.cols, DType::kF32};
  if (unpacked_.size() != 0) {
    d.data = unpacked_.data();
    if (tier_ == CoreTier::kHost) {
      unpack(wire_, arrived_.as<const std::byte>(), unpacked_.as<float>(), stream);
    }
  } else if (wire_ == WireFormat::kBF16) {
    d.dtype = DType::kBF16;
  }
  return d;
}

void CoreStaging::update(CoreMoments& moments, int from, int to, const AdamHyper& hyper,
                         float scale, std::span<float> scratch, StreamRef stream) {
  if (tier_ == CoreTier::kDevice) {
    return moments.advance(from, to, hyper, scale, core_.as<float>(), unpacked_.as<float>(),
                           stream);
  }
  switch (wire_) {
    case WireFormat::kF32:
      return moments.advance(from, to, hyper, scale, gradient_.as<float>(), direction_.as<float>(),
                             stream);
    case WireFormat::kBF16:
      return moments.advance(from, to, hyper, scale, gradient_.as<bf16>(), direction_.as<bf16>(),
                             stream);
    case WireFormat::kInt8: {
      const std::span<float> g = scratch.first(elems());
      const std::span<float> d = scratch.subspan(elems(), elems());
      unpack(wire_, gradient_.as<const std::byte>(), g, stream);
      moments.advance(from, to, hyper, scale, g, d, stream);
      ScanResult of_direction;
      sluiceway::pack(wire_, d, direction_.as<std::byte>(), &of_direction, stream);
    }
  }
}

}  // namespace sluiceway
