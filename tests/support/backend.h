// The backends of this build, and the fixture that runs one test body on each of them.
//
//   class ScanTest : public BackendTest {};
//   TEST_P(ScanTest, FindsInfinity) { ... on_backend::overflow_scan(x) ... }
//   INSTANTIATE_TEST_SUITE_P(Kernels, ScanTest, testing::ValuesIn(built_backends("overflow_scan")),
//                            backend_name);
//
// A backend is one way of running a kernel. Every SIMD target of the CPU is one, since each has its
// own compiled code; a CUDA device is one for operations with CUDA code in this build. A SIMD
// target that this processor lacks cannot run and is not listed; a missing device is listed, and
// fails.
#pragma once

#include <gtest/gtest.h>

#include <cstdint>
#include <functional>
#include <iosfwd>
#include <string>
#include <string_view>
#include <vector>

#include "kernels/base/stream_ref.h"

namespace sluiceway::test {

struct Backend {
  DeviceId device;
  std::int64_t simd_target = 0;  // HWY_AVX2 and so on; 0 for CUDA.
  std::string name;              // "cpu_AVX2"; part of the test's name.
};

// Returns every SIMD target that was compiled and that this processor runs, the best first, then
// CUDA device 0. `operation` is the name of a header of kernels/.
std::vector<Backend> built_backends(std::string_view operation);

// The SIMD targets alone: for functions that only the host has.
std::vector<Backend> host_backends();

// The host device, and in a CUDA build CUDA device 0: for tests of a device rather than of a
// kernel.
std::vector<DeviceId> built_devices();

std::string device_name(const testing::TestParamInfo<DeviceId>& param);  // "cpu" or "cuda".

void PrintTo(const Backend& backend, std::ostream* out);  // Prints the name in failure messages.

std::string backend_name(const testing::TestParamInfo<Backend>& param);

DeviceId current_device();  // Device of the running test.

// The step of a loop that makes a call for each of many positions or codes: 1 on the host, and the
// prime `on_device` on a device, where a launch costs a thousand times such a call.
std::uint32_t step_of_calls(std::uint32_t on_device);

// Runs `work` on a stream of the device and waits for it; rethrows its exceptions.
void run_on_stream(DeviceId device, const std::function<void(StreamRef)>& work);

// Selects the backend for the calls of one test and restores the default afterwards.
class BackendTest : public testing::TestWithParam<Backend> {
 protected:
  void SetUp() override;
  void TearDown() override;
  static void select(const Backend& backend);  // For later calls in this test.
};

}  // namespace sluiceway::test
