// The backends of this build, and the fixture that runs one test body on each of them.
//
//   class ScanTest : public BackendTest {};
//   TEST_P(ScanTest, FindsInfinity) { ... on_backend::overflow_scan(x) ... }
//   INSTANTIATE_TEST_SUITE_P(Kernels, ScanTest, testing::ValuesIn(built_backends("overflow_scan")),
//                            backend_name);
//
// A backend is one way of running a kernel: every SIMD target of the CPU is one, since each is its
// own compiled code, and a CUDA device is one for an operation that has its CUDA half in this
// build. A SIMD target that this processor lacks cannot run and is not listed; a device that is
// missing is listed, and fails.
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
  std::string name;              // "cpu_AVX2", a part of the test's name.
};

// Every SIMD target that was compiled and that this processor runs, the best first, and then CUDA
// device 0. `operation` is the name of a header of kernels/.
std::vector<Backend> built_backends(std::string_view operation);

std::vector<Backend> host_backends();  // The SIMD targets alone: for what only the host does.

// The host device, and CUDA device 0 in a build for it: for what belongs to a device, not a kernel.
std::vector<DeviceId> built_devices();

std::string device_name(const testing::TestParamInfo<DeviceId>& param);  // "cpu" or "cuda".

void PrintTo(const Backend& backend, std::ostream* out);  // By name, in failure messages.

std::string backend_name(const testing::TestParamInfo<Backend>& param);

DeviceId current_device();  // Of the test that runs.

// The step of a loop that makes a call for each of many positions or codes: 1 on the host, and
// `on_device`, a prime, where a launch costs a thousand times what such a call does.
std::uint32_t step_of_calls(std::uint32_t on_device);

// Runs `work` on a stream of the device and waits for it; rethrows what it throws.
void run_on_stream(DeviceId device, const std::function<void(StreamRef)>& work);

// Selects the backend for the calls of one test and restores the default afterwards.
class BackendTest : public testing::TestWithParam<Backend> {
 protected:
  void SetUp() override;
  void TearDown() override;
  static void select(const Backend& backend);  // For the calls from here on, within the test.
};

}  // namespace sluiceway::test
