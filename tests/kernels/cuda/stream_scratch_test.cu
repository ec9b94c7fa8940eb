// The scratch of a stream, and results that go through it, on CUDA device 0. A machine without one
// fails here.
#include <cuda_runtime_api.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <memory>
#include <vector>

#include "kernels/cuda/prepare_stream.h"
#include "kernels/cuda/stream_scratch.cuh"
#include "kernels/overflow_scan.h"
#include "runtime/device/stream.h"
#include "tests/support/device_array.h"
#include "tests/support/rng.h"
#include "tests/support/scan_reference.h"
#include "tests/support/what_of.h"

namespace sluiceway::test {
namespace {

using testing::HasSubstr;

Stream stream_of(const char* name) { return Stream::owned(DeviceId::cuda(0), {name}); }

unsigned* ticket_of(Stream& stream) {
  unsigned* ticket = nullptr;
  stream.enqueue([&](StreamRef ref) { ticket = cuda::StreamScratch(ref).ticket(); });
  stream.synchronize();
  return ticket;
}

TEST(CudaStreamScratchTest, EachStreamKeepsAPieceOfItsOwn) {
  Stream first = stream_of("sw-first"), second = stream_of("sw-second");
  unsigned* const ticket = ticket_of(first);
  EXPECT_NE(ticket, nullptr);
  EXPECT_NE(ticket_of(second), ticket);
  EXPECT_EQ(ticket_of(first), ticket);
}

TEST(CudaStreamScratchTest, PieceOfAStreamThatEndedGoesToTheNextOne) {
  unsigned* tickets[3] = {};
  for (unsigned*& ticket : tickets) {
    Stream stream = stream_of("sw-first");
    ticket = ticket_of(stream);
  }
  EXPECT_EQ(tickets[1], tickets[0]);
  EXPECT_EQ(tickets[2], tickets[0]);
}

TEST(CudaStreamScratchTest, PreparedStreamHasItsPiece) {
  Stream stream = stream_of("sw-first");
  const auto free_bytes = [] {
    std::size_t free = 0, total = 0;
    EXPECT_EQ(cudaMemGetInfo(&free, &total), cudaSuccess);
    return free;
  };
  stream.enqueue([&](StreamRef ref) {
    cuda::prepare_stream(ref);
    const std::size_t before = free_bytes();
    EXPECT_NE(cuda::StreamScratch(ref).ticket(), nullptr);
    cuda::prepare_stream(ref);
    EXPECT_EQ(free_bytes(), before);
  });
  stream.synchronize();
}

TEST(CudaStreamScratchTest, HandleThatEveryThreadHasIsRefused) {
  const StreamRef each_thread = StreamRef::cuda(0, cudaStreamPerThread);
  EXPECT_THAT(what_of([&] { const cuda::StreamScratch scratch(each_thread); }),
              HasSubstr("stream scratch: cudaStreamPerThread"));
  EXPECT_THAT(what_of([&] { Stream::borrowed(each_thread); }),
              HasSubstr("stream: cudaStreamPerThread"));
}

// Blocks of many kernels leave their parts at the same time, and each result has its own.
TEST(CudaStreamScratchTest, ResultsOfStreamsThatRunAtOnceDoNotMix) {
  constexpr int kRounds = 4;
  Rng rng{20261122};
  Stream streams[] = {stream_of("sw-first"), stream_of("sw-second"), stream_of("sw-third")};
  std::vector<std::vector<float>> x;
  std::vector<std::unique_ptr<DeviceArray<float>>> inputs;
  std::vector<std::unique_ptr<DeviceArray<ScanResult>>> results;
  for (int i = 0; i < 3 * kRounds; ++i) {
    x.push_back(rng.vector(5000 + 2100 * i));
    inputs.push_back(std::make_unique<DeviceArray<float>>(x.back()));
    results.push_back(std::make_unique<DeviceArray<ScanResult>>(std::vector<ScanResult>(1)));
  }
  for (std::size_t i = 0; i < x.size(); ++i) {
    streams[i % 3].enqueue([&, i](StreamRef stream) {
      cuda::overflow_scan(std::span<const float>(inputs[i]->data(), x[i].size()),
                          results[i]->data(), stream);
    });
  }
  for (Stream& stream : streams) stream.synchronize();
  for (std::size_t i = 0; i < x.size(); ++i) {
    SCOPED_TRACE(i);
    expect_same(results[i]->values()[0], reference_scan(x[i]));
  }
}

}  // namespace
}  // namespace sluiceway::test
