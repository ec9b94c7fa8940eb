// load_kernels() when the driver fails to load a kernel.
#include <cuda_runtime.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "kernels/compress.h"
#include "kernels/cuda/launch.cuh"
#include "kernels/cuda/load_kernels.h"
#include "tests/support/simt/simt.h"
#include "tests/support/what_of.h"

namespace sluiceway::test {
namespace {

using testing::HasSubstr;
using testing::StartsWith;

const DeviceId kCuda1 = DeviceId::cuda(1);  // Device 0 may be loaded already.

template <typename T>
__global__ void of_this_file(T* x) {
  *x = 1;
}

// Only names them, so that the linker takes the library's kernels; this file has one of its own.
void name_kernels(StreamRef stream) {
  cuda::launch("of_this_file", cuda::Kernel<of_this_file<float>>(), {}, stream, nullptr);
  cuda::compress({}, 0.0F, {}, stream);
}

TEST(SimtLoadKernelsTest, RefusalNamesTheKernelAndTheNextCallGoesOnWithIt) {
  ASSERT_NE(&name_kernels, nullptr);
  std::vector<std::string> refusals;
  for (int spared = 0;; spared = 1) {  // From the second round on, each call loads one more kernel.
    const simt::Fault fault("cudaFuncGetAttributes", cudaErrorNotSupported, spared);
    const std::string refusal = what_of([] { cuda::load_kernels(kCuda1); });
    if (refusal.empty()) break;
    refusals.push_back(refusal);
  }
  EXPECT_THAT(refusals, testing::Each(StartsWith("load_kernels: ")));
  EXPECT_THAT(refusals, testing::Each(HasSubstr("cudaErrorNotSupported (801)")));
  EXPECT_THAT(refusals, testing::Contains(StartsWith("load_kernels: of_this_file<float>: ")));
  EXPECT_THAT(refusals, testing::Contains(StartsWith("load_kernels: scatter_rows: ")));
  EXPECT_EQ(cuda::load_kernels(kCuda1), 0U);
}

}  // namespace
}  // namespace sluiceway::test
