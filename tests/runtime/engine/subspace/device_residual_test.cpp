// GradientResidual on a CUDA device: as on the host device, without any wait.
#include <gtest/gtest.h>

#include <cmath>
#include <memory>
#include <string>
#include <vector>

#include "compress/gradient_residual.h"
#include "runtime/device/device_memory.h"
#include "runtime/device/stream.h"
#include "runtime/memory/budget.h"
#include "runtime/memory/buffer.h"
#include "tests/support/matrix.h"
#include "tests/support/rng.h"
#include "tests/support/stream_hold.h"
#include "tests/support/tolerance.h"

namespace sluiceway::test {
namespace {

constexpr std::int64_t kM = 67, kN = 41;

// One weight with its codec and its residual.
class Side {
 public:
  Side(DeviceId device, ResidualKind kind, const Matrix& weight)
      : device_(device),
        stream_(device.is_host() ? Stream::borrowed(StreamRef::host())
                                 : Stream::owned(device, {"sw-test"})),
        codec_(make_codec({.name = "block_random", .block = 16, .seed = 3}, kM, kN, 5, device,
                          budget_)),
        residual_(kind, kM, kN, device, budget_, "w"),
        core_(floats(codec_->core().elems())),
        scratch_(floats(static_cast<std::int64_t>(codec_->scratch_elems()))),
        weight_(placed(weight)) {}
  ~Side() { stream_.synchronize(); }
  Side(const Side&) = delete;

  // Allocates here, since an allocation may wait for the device.
  void place(const Matrix& gradient) { gradients_.push_back(placed(gradient)); }
  void apply(const Matrix& gradient, double max_rms = 1) {
    place(gradient);
    apply_placed(max_rms);
  }
  void apply_placed(double max_rms = 1) {  // Applies the gradient placed last.
    const AnyMatrix g = view(gradients_.back());
    const CoreShape shape = codec_->core();
    const MatrixView<float> s(core_.as<float>().data(), shape.rows, shape.cols);
    const ResidualStep step{
        .lr = 0.01, .beta2 = 0.99, .eps = 1e-8, .factor = 0.5F, .max_rms = max_rms, .update = {}};
    stream_.enqueue([&](StreamRef ref) {
      ref_ = ref;
      codec_->compress(g, 0.0F, s, scratch_.as<float>(), ref);
      residual_.apply(*codec_, g, s, view(weight_), {}, step, scratch_.as<float>(), ref);
    });
  }

  HoldWord hold() {  // Work enqueued from now on waits until it is raised.
    const HoldWord held(device_);
    stream_.enqueue([&held](StreamRef ref) { held.hold(ref); });
    return held;
  }
  Event reached() { return stream_.record(); }

  bool trained() const { return residual_.trained(ref_); }
  GradientResidual& residual() { return residual_; }
  Matrix weight() {
    stream_.synchronize();
    Matrix here(kM, kN);
    copy_device_bytes(device_, here.v.data(), weight_.data(), weight_.size());
    return here;
  }
  std::vector<float> moments() {
    stream_.synchronize();
    std::vector<float> here(residual_.moments().size());
    copy_device_bytes(device_, here.data(), residual_.moments().data(), 4 * here.size());
    return here;
  }

 private:
  Buffer floats(std::int64_t elems) {
    return {budget_, Tier::kDevice, device_, 4 * static_cast<std::size_t>(elems),
            "memory of a test"};
  }
  Buffer placed(const Matrix& x) {
    Buffer there = floats(kM * kN);
    copy_device_bytes(device_, there.data(), x.v.data(), there.size());
    return there;
  }
  static AnyMatrix view(const Buffer& x) { return {x.data(), kM, kN, kN, DType::kF32}; }

  DeviceId device_;
  Budget budget_ = Budget::unlimited();
  Stream stream_;
  StreamRef ref_ = StreamRef::host();
  std::unique_ptr<GradientCodec> codec_;
  GradientResidual residual_;
  Buffer core_, scratch_, weight_;
  std::vector<Buffer> gradients_;
};

class DeviceResidualTest : public testing::TestWithParam<ResidualKind> {
 protected:
  // The sixth is not finite, the eighth is zero, the third is clipped.
  static Matrix gradient(Rng& rng, int step) {
    Matrix g = rng.matrix(kM, kN, step == 2 ? 30 : 0.01);
    if (step == 5) g(66, 40) = std::nanf("");
    if (step == 7) g = Matrix(kM, kN);
    return g;
  }
};

TEST_P(DeviceResidualTest, TrainsAsOnTheHostDevice) {
  for (const std::uint64_t seed : {1U, 2U, 3U}) {
    Rng rng{seed};
    const Matrix weight = rng.matrix(kM, kN);
    Side on_host(DeviceId::host(), GetParam(), weight);
    Side on_device(DeviceId::cuda(0), GetParam(), weight);
    for (int step = 0; step < 9; ++step) {
      const Matrix g = gradient(rng, step);
      const double max_rms = step == 8 ? HUGE_VAL : 1;
      on_host.apply(g, max_rms);
      on_device.apply(g, max_rms);
      EXPECT_EQ(on_host.trained(), step != 5);
      EXPECT_EQ(on_device.trained(), step != 5);
    }
    EXPECT_EQ(on_host.residual().steps(), GetParam() == ResidualKind::kFactored ? 8 : 0);
    EXPECT_EQ(on_device.residual().steps(), on_host.residual().steps());
    EXPECT_TRUE(all_near(on_device.weight(), as_f64(on_host.weight()), {.abs = 2e-6}));
    const std::vector<float> expected = on_host.moments();
    EXPECT_TRUE(all_near(on_device.moments(), expected, {.eps = 84}));  // 1e-5
    EXPECT_NE(on_device.weight(), weight);
  }
}

TEST_P(DeviceResidualTest, ItsStateGoesOnOnAnotherDevice) {
  Rng rng{4};
  const Matrix weight = rng.matrix(kM, kN);
  Side on_host(DeviceId::host(), GetParam(), weight);
  const std::vector<Matrix> g = {rng.matrix(kM, kN), rng.matrix(kM, kN)};
  on_host.apply(g[0]);
  Side moved(DeviceId::cuda(0), GetParam(), on_host.weight());
  moved.residual().load(on_host.residual().steps(), on_host.moments());
  on_host.apply(g[1]);
  moved.apply(g[1]);
  EXPECT_TRUE(all_near(moved.weight(), as_f64(on_host.weight()), {.abs = 1e-6}));
  EXPECT_EQ(moved.residual().steps(), on_host.residual().steps());
}

TEST_P(DeviceResidualTest, NobodyWaitsForADeviceThatIsBehind) {
  Rng rng{5};
  const Matrix weight = rng.matrix(kM, kN);
  Side side(DeviceId::cuda(0), GetParam(), weight);
  side.apply(rng.matrix(kM, kN));  // Gives the stream its scratch.
  side.trained();
  const Matrix g = rng.matrix(kM, kN), before = side.weight();
  side.place(g);
  const HoldWord held = side.hold();
  side.apply_placed();
  const Event reached = side.reached();
  EXPECT_FALSE(reached.happened());
  held.raise();
  EXPECT_TRUE(side.trained());
  EXPECT_NE(side.weight(), before);
}

INSTANTIATE_TEST_SUITE_P(Cuda, DeviceResidualTest,
                         testing::Values(ResidualKind::kFactored, ResidualKind::kSign),
                         [](const auto& param) { return std::string(to_string(param.param)); });

}  // namespace
}  // namespace sluiceway::test
