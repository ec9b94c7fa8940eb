// Memory bugs that the SIMT machine must find, each beside the same kernel without it.
#include <cstring>

#include "kernels/cuda/launch.cuh"
#include "kernels/cuda/shared.cuh"
#include "tests/simt/planted.h"
#include "tests/support/device_array.h"

namespace sluiceway::test {
namespace {

using testing::AnyOf;
using testing::ContainsRegex;
using testing::HasSubstr;

class SimtMemoryTest : public SimtTest {
 protected:
  static constexpr unsigned kElems = 100;
  DeviceArray<float> x{std::vector<float>(kElems, 1.0F)};
  DeviceArray<float> y{std::vector<float>(kElems, 2.0F)};
};

template <bool kRight>
__global__ void scale(const float* x, unsigned elems, float* y) {
  const unsigned i = blockIdx.x * blockDim.x + threadIdx.x;
  if (kRight ? i < elems : i <= elems) y[i] = 2.0F * x[i];
}

TEST_F(SimtMemoryTest, TailThatIsOffByOne) {
  const cuda::Shape shape{4, 32};
  expect_found("scale<false>",
               HasSubstr("reads 4 bytes, among them 0 bytes past the end of an "
                         "allocation of 400 bytes"),
               [&](StreamRef stream) {
                 cuda::launch("scale", cuda::Kernel<scale<false>>(), shape, stream, x.data(),
                              kElems, y.data());
               });
  expect_nothing([&](StreamRef stream) {
    cuda::launch("scale", cuda::Kernel<scale<true>>(), shape, stream, x.data(), kElems, y.data());
  });
}

TEST_F(SimtMemoryTest, ElementBeforeTheFirst) {
  expect_found("scale<true>", HasSubstr("4 bytes before an allocation of 400 bytes"),
               [&](StreamRef stream) {
                 cuda::launch("scale", cuda::Kernel<scale<true>>(), {1, 32}, stream, x.data(), 1U,
                              y.data() - 1);
               });
}

TEST_F(SimtMemoryTest, ReadOfWhatNobodyHasWritten) {
  const DeviceArray<float> nothing(kElems);
  expect_found("scale<true>", HasSubstr("which nobody has written"), [&](StreamRef stream) {
    cuda::launch("scale", cuda::Kernel<scale<true>>(), {4, 32}, stream, nothing.data(), kElems,
                 y.data());
  });
}

TEST_F(SimtMemoryTest, UseAfterFree) {
  DeviceArray<float> gone(std::vector<float>(kElems, 1.0F));
  const float* const dangling = gone.data();
  gone.release();
  expect_found("scale<true>", HasSubstr("of an allocation of 400 bytes that was freed"),
               [&](StreamRef stream) {
                 cuda::launch("scale", cuda::Kernel<scale<true>>(), {4, 32}, stream, dangling,
                              kElems, y.data());
               });
}

TEST_F(SimtMemoryTest, PointerOfTheHost) {
  const std::vector<float> host(kElems, 1.0F);
  expect_found("scale<true>", HasSubstr("of the host's memory"), [&](StreamRef stream) {
    cuda::launch("scale", cuda::Kernel<scale<true>>(), {4, 32}, stream, host.data(), kElems,
                 y.data());
  });
}

__global__ void add_quads(const float* x, float* y) {
  const float4 quad = reinterpret_cast<const float4*>(x)[threadIdx.x];
  y[threadIdx.x] = quad.x + quad.y + quad.z + quad.w;
}

TEST_F(SimtMemoryTest, VectorLoadFromAMisalignedAddress) {
  expect_found("add_quads", HasSubstr("reads 16 bytes at"), [&](StreamRef stream) {
    cuda::launch("add_quads", cuda::Kernel<add_quads>(), {1, 8}, stream, x.data() + 1, y.data());
  });
  expect_nothing([&](StreamRef stream) {
    cuda::launch("add_quads", cuda::Kernel<add_quads>(), {1, 8}, stream, x.data() + 4, y.data());
  });
}

template <bool kRight>
__global__ void fill_quads(float* y, unsigned quads) {
  const float x = threadIdx.x;
  if (kRight ? threadIdx.x < quads : threadIdx.x <= quads) {
    float4* const quad = reinterpret_cast<float4*>(y) + threadIdx.x;
    *quad = make_float4(x, x, x, x);
  }
}

// A structure that a call returns goes straight to its destination, and the compiler does not
// report that store; so the function must be inlined.
TEST_F(SimtMemoryTest, StoreOfAVectorThatACallReturns) {
  expect_found("fill_quads<false>", HasSubstr("writes 16 bytes, among them 0 bytes past the end"),
               [&](StreamRef stream) {
                 cuda::launch("fill_quads", cuda::Kernel<fill_quads<false>>(), {1, 32}, stream,
                              y.data(), 25U);
               });
  expect_found("fill_quads<true>", HasSubstr("writes 16 bytes at"), [&](StreamRef stream) {
    cuda::launch("fill_quads", cuda::Kernel<fill_quads<true>>(), {1, 32}, stream, y.data() + 1, 8U);
  });
  expect_nothing([&](StreamRef stream) {
    cuda::launch("fill_quads", cuda::Kernel<fill_quads<true>>(), {1, 32}, stream, y.data(), 25U);
  });
}

struct Triple {
  float first, second, third;
};

__device__ Triple triple_of(float x) {
  Triple triple;
  triple.first = triple.second = triple.third = x;
  return triple;
}

template <bool kRight>
__global__ void fill_triples(float* y) {
  __shared__ Triple tile[32];
  Triple* const mine = tile + threadIdx.x;
  *mine = triple_of(static_cast<float>(threadIdx.x));
  if (kRight) __syncthreads();
  y[threadIdx.x] = tile[31 - threadIdx.x].second;
}

TEST_F(SimtMemoryTest, StoreOfAStructureThatADeviceFunctionReturns) {
  expect_found("fill_triples<false>",
               AnyOf(HasSubstr("not written"), HasSubstr("was written by thread")),
               [&](StreamRef stream) {
                 cuda::launch("fill_triples", cuda::Kernel<fill_triples<false>>(), {1, 32}, stream,
                              y.data());
               });
  expect_nothing([&](StreamRef stream) {
    cuda::launch("fill_triples", cuda::Kernel<fill_triples<true>>(), {1, 32}, stream, y.data());
  });
}

__global__ void copy_words(const float* x, float* y, unsigned elems) {
  std::memcpy(y, x, elems * sizeof(float));
}

TEST_F(SimtMemoryTest, BytesThatMemcpyMovesAreSeen) {
  expect_found("copy_words", HasSubstr("past the end of"), [&](StreamRef stream) {
    cuda::launch("copy_words", cuda::Kernel<copy_words>(), {1, 1}, stream, x.data(), y.data(),
                 kElems + 1);
  });
  expect_nothing([&](StreamRef stream) {
    cuda::launch("copy_words", cuda::Kernel<copy_words>(), {1, 1}, stream, x.data(), y.data(),
                 kElems);
  });
}

// An inline function that host sources use as well.
__global__ void largest(const float* x, unsigned elems, float* y) {
  float most = 0.0F;
  for (unsigned i = 0; i < elems; ++i) most = std::max(most, x[i]);
  *y = most;
}

TEST_F(SimtMemoryTest, LoadsOfInlineFunctionsAreSeen) {
  expect_found("largest", HasSubstr("past the end of"), [&](StreamRef stream) {
    cuda::launch("largest", cuda::Kernel<largest>(), {1, 1}, stream, x.data(), kElems + 1,
                 y.data());
  });
  expect_nothing([&](StreamRef stream) {
    cuda::launch("largest", cuda::Kernel<largest>(), {1, 1}, stream, x.data(), kElems, y.data());
  });
}

__global__ void fill_shared(float* y) {
  auto* const shared = cuda::dynamic_shared<float>();
  shared[threadIdx.x] = 1.0F;
  __syncthreads();
  y[threadIdx.x] = shared[blockDim.x - 1 - threadIdx.x];
}

TEST_F(SimtMemoryTest, DynamicSharedMemoryThatIsTooSmall) {
  expect_found(
      "fill_shared", HasSubstr("128 bytes of dynamic shared memory"), [&](StreamRef stream) {
        cuda::launch("fill_shared", cuda::Kernel<fill_shared>(), {1, 64, 128}, stream, y.data());
      });
  expect_nothing([&](StreamRef stream) {
    cuda::launch("fill_shared", cuda::Kernel<fill_shared>(), {1, 64, 256}, stream, y.data());
  });
}

template <bool kRight>
__global__ void shift_in_tile(float* y) {
  __shared__ float tile[32];
  __shared__ float next[32];
  tile[kRight ? threadIdx.x : threadIdx.x + 1] = 1.0F;
  next[threadIdx.x] = 2.0F;
  __syncthreads();
  y[threadIdx.x] = tile[31 - threadIdx.x] + next[31 - threadIdx.x];
}

TEST_F(SimtMemoryTest, ElementPastAStaticSharedArray) {
  expect_found("shift_in_tile<false>",
               ContainsRegex("writes 4 bytes of shared memory, 0 bytes past the end of "
                             ".*shift_in_tile<false>.*::tile, of 128 bytes"),
               [&](StreamRef stream) {
                 cuda::launch("shift_in_tile", cuda::Kernel<shift_in_tile<false>>(), {1, 32},
                              stream, y.data());
               });
  expect_nothing([&](StreamRef stream) {
    cuda::launch("shift_in_tile", cuda::Kernel<shift_in_tile<true>>(), {1, 32}, stream, y.data());
  });
}

// A block must not read what the previous one left in shared memory.
__global__ void leave_shared(float* y) {
  __shared__ float left;
  if (blockIdx.x == 0) left = 1.0F;
  y[blockIdx.x] = left;
}

TEST_F(SimtMemoryTest, SharedMemoryOfTheBlockBefore) {
  expect_found(
      "leave_shared", HasSubstr("which this block has not written"), [&](StreamRef stream) {
        cuda::launch("leave_shared", cuda::Kernel<leave_shared>(), {8, 1}, stream, y.data());
      });
}

TEST_F(SimtMemoryTest, HostThatFollowsADevicePointer) {
  testing::FLAGS_gtest_death_test_style = "threadsafe";
  EXPECT_DEATH(static_cast<volatile float*>(x.data())[3] = 1.0F,
               "the host accesses device memory at .*, byte 12 of an allocation of 400 bytes");
}

}  // namespace
}  // namespace sluiceway::test
