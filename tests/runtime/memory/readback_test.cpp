// Readback: results of kernels reach the host with one copy, after the kernels of their stream.
#include "runtime/memory/readback.h"

#include <gtest/gtest.h>

#include <vector>

#include "kernels/overflow_scan.h"
#include "runtime/device/device_memory.h"
#include "runtime/memory/budget.h"
#include "runtime/memory/buffer.h"
#include "tests/support/backend.h"

namespace sluiceway::test {
namespace {

class ReadbackTest : public BackendTest {
 protected:
  std::span<const float> place(const std::vector<float>& values) {
    const std::size_t bytes = values.size() * sizeof(float);
    placed_.emplace_back(budget_, Tier::kDevice, current_device(), bytes, "memory of a test");
    copy_device_bytes(current_device(), placed_.back().data(), values.data(), bytes);
    return placed_.back().as<const float>();
  }

  // Runs `work` with the stream and its StreamRef.
  template <class Work>
  void on_stream(const Work& work) {
    if (current_device().is_host()) {
      Stream stream = Stream::borrowed(StreamRef::host());
      return work(stream, StreamRef::host());
    }
    Stream stream = Stream::owned(current_device(), {"sw-test"});
    StreamRef ref = StreamRef::host();
    stream.enqueue([&](StreamRef given) { ref = given; });
    work(stream, ref);
    stream.synchronize();
  }

  Budget budget_ = Budget::unlimited();
  std::vector<Buffer> placed_;
};

TEST_P(ReadbackTest, SlotsComeAsTheKernelsLeaveThem) {
  const std::span<const float> a = place({3, -4}), b = place({1, 2, -2});
  Readback<ScanResult> results(budget_, current_device(), 3, "scans of a test");
  on_stream([&](Stream& stream, StreamRef ref) {
    overflow_scan(a, results.slot(0), ref);
    overflow_scan(b, results.slot(2), ref);
    results.fetch(stream);
    EXPECT_EQ(results.get(0).sum_squares, 25.0);
    EXPECT_EQ(results.get(2).abs_max, 2.0F);
    overflow_scan(b, results.slot(0), ref);
    results.fetch(stream);
    EXPECT_EQ(results.get(0).sum_squares, 9.0);
    EXPECT_EQ(results.get(2).sum_squares, 9.0);
  });
}

TEST_P(ReadbackTest, TheHostDeviceReservesNothingAndAnyOtherWhatItTakes) {
  const std::uint64_t before = budget_.used(Tier::kDevice);
  const Readback<double> results(budget_, current_device(), 5, "numbers of a test");
  const bool host = current_device().is_host();
  EXPECT_EQ(budget_.used(Tier::kDevice) - before, host ? 0U : 40U);
  EXPECT_EQ(budget_.used(Tier::kPinned), host ? 0U : 4096U);
  EXPECT_EQ(results.copies(), !host);
  for (const Tier tier : {Tier::kDevice, Tier::kPinned, Tier::kHost}) {
    EXPECT_EQ(budget_.used(tier) - (tier == Tier::kDevice ? before : 0),
              Readback<double>::reserved(tier, current_device(), 5));
  }
}

INSTANTIATE_TEST_SUITE_P(Memory, ReadbackTest, testing::ValuesIn(built_backends("overflow_scan")),
                         backend_name);

}  // namespace
}  // namespace sluiceway::test
