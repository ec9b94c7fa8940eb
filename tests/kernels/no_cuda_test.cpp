// The CUDA half of each kernel in a build without CUDA: a clear error, never a crash.
//
// tests/python/repository/test_cuda_halves.py compares the calls below with what the headers
// declare.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "kernels/adam.h"
#include "kernels/base/error.h"
#include "kernels/bias_norm.h"
#include "kernels/compress.h"
#include "kernels/compress_linear.h"
#include "kernels/cuda/load_kernels.h"
#include "kernels/cuda/prepare_stream.h"
#include "kernels/decompress.h"
#include "kernels/factored_adam.h"
#include "kernels/gradient_copy.h"
#include "kernels/low_rank.h"
#include "kernels/noise.h"
#include "kernels/overflow_scan.h"
#include "kernels/perturb.h"
#include "kernels/philox.h"
#include "kernels/residual.h"
#include "kernels/residual_form.h"
#include "kernels/wire.h"

namespace sluiceway::test {
namespace {

using testing::AllOf;
using testing::HasSubstr;
using testing::StartsWith;
using testing::ThrowsMessage;

template <typename Call>
void expect_unavailable(const std::string& function, const Call& call) {
  EXPECT_THAT(call, ThrowsMessage<Unavailable>(
                        AllOf(StartsWith(function + ": "), HasSubstr("this build has no CUDA"))));
}

// Arguments of the calls, which never read them.
struct Nothing {
  AnyMatrix any;
  MatrixView<float> core;
  MatrixView<std::uint16_t> low;
  SparseRows sparse;
  SparseColumns columns;
  BlockRows blocks;
  std::span<float> out;
  std::span<const float> in;
  std::span<std::byte> bytes;
  FactoredRoots roots;
  AdamMoments moments;
  AdamHyper hyper;
  WeightUpdate update;
  NoiseKey key;
  LowRank product;
  StreamRef stream = StreamRef::cuda(0, nullptr);
};

TEST(NoCudaTest, EveryKernelOfAWeightSaysThatItIsUnavailable) {
  const Nothing no;
  const auto refused = [&](const char* name, const auto& call) { expect_unavailable(name, call); };
  refused("bias_norm", [&] {
    cuda::bias_norm(nullptr, no.any, no.sparse, no.sparse, no.columns, no.out, no.stream);
  });
  refused("bias_norm",
          [&] { cuda::bias_norm(nullptr, no.any, no.blocks, no.blocks, no.out, no.stream); });
  const DeviceId device = no.stream.device();
  refused("prepare_products", [&] { cuda::prepare_products(no.sparse, no.sparse, device); });
  refused("prepare_products", [&] { cuda::prepare_products(no.blocks, no.blocks, device); });
  refused("compress",
          [&] { cuda::compress(no.core, 0, no.any, no.sparse, no.columns, no.out, no.stream); });
  refused("compress",
          [&] { cuda::compress(no.core, 0, no.any, no.blocks, no.blocks, no.out, no.stream); });
  refused("compress", [&] { cuda::compress(no.core, 0, no.any, no.stream); });
  refused("project_rows",
          [&] { cuda::project_rows(no.any, no.any, no.sparse, no.out, no.stream); });
  refused("project_rows",
          [&] { cuda::project_rows(no.any, no.any, no.blocks, no.out, no.stream); });
  refused("decompress", [&] {
    cuda::decompress(no.any, no.low, no.any, no.sparse, no.sparse, no.update, no.out, no.stream);
  });
  refused("decompress", [&] {
    cuda::decompress(no.any, no.low, no.any, no.blocks, no.blocks, no.update, no.out, no.stream);
  });
  refused("decompress", [&] { cuda::decompress(no.any, no.low, no.any, no.update, no.stream); });
  refused("residual_form", [&] {
    cuda::residual_form(no.any, no.core, no.sparse, no.sparse, {}, no.out, no.stream);
  });
  refused("residual_form", [&] {
    cuda::residual_form(no.any, no.core, no.blocks, no.blocks, {}, no.out, no.stream);
  });
  refused("mean_squares", [&] { cuda::mean_squares(no.any, {}, 1, no.stream); });
  refused("residual_clip",
          [&] { cuda::residual_clip(nullptr, no.any, no.roots, 0, 1, no.stream); });
  refused("residual_apply", [&] {
    cuda::residual_apply(no.any, no.low, no.any, no.roots, no.update, nullptr, no.stream);
  });
  refused("residual_sign",
          [&] { cuda::residual_sign(no.any, no.low, no.any, no.update, nullptr, no.stream); });
}

TEST(NoCudaTest, EveryKernelOfAChunkSaysThatItIsUnavailable) {
  const Nothing no;
  const auto refused = [&](const char* name, const auto& call) { expect_unavailable(name, call); };
  refused("fill_bits", [&] { cuda::fill_bits(no.key, 0, std::span<std::uint32_t>(), no.stream); });
  refused("fill_bits", [&] { cuda::fill_bits(no.key, 0, std::span<std::uint16_t>(), no.stream); });
  refused("draw_noise",
          [&] { cuda::draw_noise({}, no.key, 0, NoiseFamily::kGaussian, no.stream); });
  refused("perturb", [&] {
    cuda::perturb(no.bytes, DType::kF32, no.bytes, no.bytes, DType::kF32, {}, no.key, 1, no.stream);
  });
  refused("materialise", [&] {
    cuda::materialise(no.bytes, DType::kF32, no.bytes, DType::kF32, {}, Rounding::kNearest, no.key,
                      no.stream);
  });
  refused("perturb_low_rank", [&] {
    cuda::perturb_low_rank(no.any, no.any, no.any, no.product, 1, no.product, 1, no.stream);
  });
  refused("materialise_low_rank", [&] {
    cuda::materialise_low_rank(no.any, no.any, no.product, 1, Rounding::kNearest, no.key, 0,
                               no.stream);
  });
  refused("overflow_scan", [&] { cuda::overflow_scan(no.in, nullptr, no.stream); });
  refused("overflow_scan", [&] { cuda::overflow_scan(no.any, nullptr, no.stream); });
  refused("overflow_scan_copy",
          [&] { cuda::overflow_scan_copy(no.in, no.out, nullptr, no.stream); });
  refused("gradient_copy", [&] { cuda::gradient_copy(no.in, no.out, nullptr, no.stream); });
  refused("gradient_copy", [&] {
    cuda::gradient_copy(no.bytes, DType::kF32, no.bytes, DType::kF16, nullptr, no.stream);
  });
  refused("adam_direction",
          [&] { cuda::adam_direction(no.in, 1, no.moments, no.hyper, no.out, no.stream); });
  refused("adam_step",
          [&] { cuda::adam_step(no.in, 1, no.moments, no.hyper, HiLoWeight{}, no.stream); });
  refused("factored_adam_direction", [&] {
    cuda::factored_adam_direction<float>(no.core, 1, no.core, no.core, no.roots, no.hyper, no.core,
                                         no.stream);
  });
  refused("pack", [&] { cuda::pack(WireFormat::kInt8, no.in, no.bytes, nullptr, no.stream); });
  refused("unpack", [&] { cuda::unpack(WireFormat::kInt8, no.bytes, no.out, no.stream); });
}

TEST(NoCudaTest, DeviceAndStreamCannotBeMadeReady) {
  using cuda::load_kernels;
  using cuda::prepare_stream;
  const StreamRef stream = StreamRef::cuda(0, nullptr);
  expect_unavailable("load_kernels", [&] { load_kernels(stream.device()); });
  expect_unavailable("prepare_stream", [&] { prepare_stream(stream); });
  EXPECT_EQ(load_kernels(DeviceId::host()), 0U);
  EXPECT_NO_THROW(prepare_stream(StreamRef::host()));
  EXPECT_NO_THROW(prepare_products(BlockRows{}, BlockRows{}, DeviceId::host()));
}

// The dispatch sends a CUDA stream to the CUDA half.
TEST(NoCudaTest, KernelOnACudaStreamDoesNotRunOnTheHost) {
  float value = 1;
  const AnyMatrix g{&value, 1, 1, 1, DType::kF32};
  EXPECT_THAT([&] { compress(MatrixView<float>(&value, 1, 1), 2, g, StreamRef::cuda(0, nullptr)); },
              ThrowsMessage<Unavailable>(HasSubstr("compress: ")));
  EXPECT_EQ(value, 1);
}

}  // namespace
}  // namespace sluiceway::test
