// The backends of this build, and the fixture that runs one test body on each of them.
//
//   class ScanTest : public BackendTest {};
//   TEST_P(ScanTest, FindsInfinity) { ... scan_on(GetParam(), x) ... }
//   INSTANTIATE_TEST_SUITE_P(Kernels, ScanTest, testing::ValuesIn(built_backends()), backend_name);
//
// A backend is one way of running a kernel: every SIMD target of the CPU is one, since each is its
// own compiled code. A target that this processor lacks cannot run and is not listed.
#pragma once

#include <gtest/gtest.h>

#include <cstdint>
#include <iosfwd>
#include <string>
#include <vector>

namespace sluiceway::test {

enum class BackendKind : std::uint8_t { kCpu, kCuda };

struct Backend {
  BackendKind kind = BackendKind::kCpu;
  std::int64_t simd_target = 0;  // HWY_AVX2 and so on; 0 for CUDA.
  std::string name;              // "cpu_AVX2", a part of the test's name.
};

// Every SIMD target that was compiled and that this processor runs, the best first.
std::vector<Backend> built_backends();

void PrintTo(const Backend& backend, std::ostream* out);  // By name, in failure messages.

std::string backend_name(const testing::TestParamInfo<Backend>& param);

// Selects the backend for the calls of one test and restores the default afterwards.
class BackendTest : public testing::TestWithParam<Backend> {
 protected:
  void SetUp() override;
  void TearDown() override;
};

}  // namespace sluiceway::test
