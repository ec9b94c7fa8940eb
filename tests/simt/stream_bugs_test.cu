// Bugs between streams, and between a stream and the host, that the SIMT machine must find.
#include <algorithm>
#include <cstdlib>
#include <utility>

#include "kernels/cuda/launch.cuh"
#include "runtime/device/device_memory.h"
#include "runtime/device/link_copy.h"
#include "runtime/device/stream.h"
#include "tests/simt/planted.h"
#include "tests/support/device_array.h"

namespace sluiceway::test {
namespace {

using testing::AllOf;
using testing::Contains;
using testing::HasSubstr;
using testing::IsEmpty;

constexpr DeviceId kCuda0 = DeviceId::cuda(0);

__global__ void add_one(float* x) { x[threadIdx.x] += 1.0F; }

class Pinned {
 public:
  explicit Pinned(std::size_t elems)
      : bytes_(elems * sizeof(float)), held_(allocate_pinned_bytes(kCuda0, bytes_)) {}
  Pinned(const Pinned&) = delete;
  Pinned& operator=(const Pinned&) = delete;
  ~Pinned() { release(); }
  float* data() const { return static_cast<float*>(held_.data); }
  void release() { free_pinned_bytes(std::exchange(held_, {}), bytes_); }

 private:
  std::size_t bytes_;
  PinnedBytes held_;
};

class SimtStreamTest : public SimtTest {
 protected:
  static constexpr unsigned kThreads = 64;

  void add(Stream& on) {
    on.enqueue([this](StreamRef ref) {
      cuda::launch("add_one", cuda::Kernel<add_one>(), {1, kThreads}, ref, x.data());
    });
  }
  void copy_up(Stream& on, const Pinned& from) {
    on.enqueue(
        [this, &from](StreamRef ref) { up.copy(x.data(), from.data(), x.size_bytes(), ref); });
  }
  void finish() {
    for (Stream* const stream : {&first, &second}) {
      try {
        stream->synchronize();
      } catch (const CudaError&) {  // It carries the finding.
      }
    }
  }
  std::vector<std::string> findings() {
    finish();
    return simt::take_findings();
  }

  DeviceArray<float> x{std::vector<float>(kThreads, 1.0F)};
  Stream first = Stream::owned(kCuda0, {"first"});
  Stream second = Stream::owned(kCuda0, {"second"});
  LinkCopy up{kCuda0, LinkDirection::kHostToDevice, {}};
  LinkCopy down{kCuda0, LinkDirection::kDeviceToHost, {}};
};

TEST_F(SimtStreamTest, MissingWaitForAnEvent) {
  {
    const simt::Hold hold;
    add(first);
    add(second);
  }
  EXPECT_THAT(findings(), Contains(AllOf(HasSubstr("add_one"), HasSubstr("thread ("),
                                         HasSubstr("on another stream; wait for an event"))));
  add(first);
  second.wait(first.record());
  add(second);
  EXPECT_THAT(findings(), IsEmpty());
}

TEST_F(SimtStreamTest, MissingWaitForACopy) {
  const Pinned target(kThreads);
  const auto copy_down = [&](StreamRef ref) {
    down.copy(target.data(), x.data(), x.size_bytes(), ref);
  };
  {
    const simt::Hold hold;
    add(first);
    second.enqueue(copy_down);
  }
  EXPECT_THAT(findings(), Contains(HasSubstr("on another stream; wait for an event")));
  add(first);
  second.wait(first.record());
  second.enqueue(copy_down);
  EXPECT_THAT(findings(), IsEmpty());
}

TEST_F(SimtStreamTest, WaitsOfTheHostCount) {
  add(first);
  first.record().wait();
  add(second);
  EXPECT_THAT(findings(), IsEmpty());
}

TEST_F(SimtStreamTest, StagingBufferThatIsFilledAgainTooEarly) {
  const Pinned staging(kThreads);
  std::fill_n(staging.data(), kThreads, 1.0F);
  {
    const simt::Hold hold;
    copy_up(first, staging);
    std::fill_n(staging.data(), kThreads, 2.0F);
  }
  EXPECT_THAT(findings(), Contains(HasSubstr("has changed since it was asked for")));
  copy_up(first, staging);
  first.synchronize();
  std::fill_n(staging.data(), kThreads, 3.0F);
  EXPECT_THAT(findings(), IsEmpty());
}

TEST_F(SimtStreamTest, StagingBufferThatIsFreedTooEarly) {
  Pinned staging(kThreads);
  std::fill_n(staging.data(), kThreads, 1.0F);
  {
    const simt::Hold hold;
    copy_up(first, staging);
    staging.release();
  }
  EXPECT_THAT(findings(), Contains(HasSubstr("a copy of it is not done")));
}

TEST_F(SimtStreamTest, FindingsThatNobodyTakesFailTheProgram) {
  testing::FLAGS_gtest_death_test_style = "threadsafe";
  const auto run = [this] {
    {
      const simt::Hold hold;
      add(first);
      add(second);
    }
    finish();
    std::exit(0);
  };
  EXPECT_EXIT(run(), testing::ExitedWithCode(1), "findings that no test has taken");
}

}  // namespace
}  // namespace sluiceway::test
