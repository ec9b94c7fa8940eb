// The CUDA half of each kernel in a build without CUDA: an error that says so, never a crash.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "kernels/adam.h"
#include "kernels/base/error.h"
#include "kernels/overflow_scan.h"
#include "kernels/philox.h"
#include "kernels/wire.h"

namespace sluiceway::test {
namespace {

using testing::AllOf;
using testing::HasSubstr;
using testing::ThrowsMessage;

template <typename Call>
void expect_unavailable(const char* function, const Call& call) {
  EXPECT_THAT(call, ThrowsMessage<Unavailable>(AllOf(HasSubstr(function), HasSubstr("no CUDA"))));
}

TEST(NoCudaTest, EveryKernelSaysThatItIsUnavailable) {
  const std::span<const float> in;
  const std::span<float> out;
  expect_unavailable("fill_bits", [&] {
    cuda::fill_bits(NoiseKey{}, 0, std::span<std::uint32_t>(), StreamRef{});
  });
  expect_unavailable("overflow_scan", [&] { cuda::overflow_scan(in, nullptr, StreamRef{}); });
  expect_unavailable("overflow_scan_copy",
                     [&] { cuda::overflow_scan_copy(in, out, nullptr, StreamRef{}); });
  expect_unavailable("adam_direction", [&] {
    cuda::adam_direction(in, 1.0F, AdamMoments{}, AdamHyper{}, out, StreamRef{});
  });
  expect_unavailable("adam_step", [&] {
    cuda::adam_step(in, 1.0F, AdamMoments{}, AdamHyper{}, HiLoWeight{}, StreamRef{});
  });
  expect_unavailable("pack", [&] { cuda::pack(WireFormat::kInt8, in, {}, nullptr, StreamRef{}); });
  expect_unavailable("unpack", [&] { cuda::unpack(WireFormat::kInt8, {}, out, StreamRef{}); });
}

}  // namespace
}  // namespace sluiceway::test
