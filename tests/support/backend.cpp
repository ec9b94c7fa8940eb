#include "tests/support/backend.h"

#include <hwy/highway.h>

#include <ostream>

namespace sluiceway::test {

std::vector<Backend> built_backends() {
  std::vector<Backend> backends;
  // The fallback's bit depends on the compiler, and the library was built with its own compiler.
  std::int64_t targets = (hwy::SupportedTargets() | HWY_STATIC_TARGET) & HWY_TARGETS;
  for (; targets != 0; targets &= targets - 1) {
    const std::int64_t lowest = targets & -targets;
    backends.push_back({BackendKind::kCpu, lowest, std::string("cpu_") + hwy::TargetName(lowest)});
  }
  return backends;
}

void PrintTo(const Backend& backend, std::ostream* out) { *out << backend.name; }

std::string backend_name(const testing::TestParamInfo<Backend>& param) { return param.param.name; }

void BackendTest::SetUp() {
  if (GetParam().kind != BackendKind::kCpu) return;
  hwy::SetSupportedTargetsForTest(GetParam().simd_target);
  hwy::GetChosenTarget().Update(hwy::SupportedTargets());
}

void BackendTest::TearDown() {
  hwy::SetSupportedTargetsForTest(0);
  hwy::GetChosenTarget().DeInit();
}

}  // namespace sluiceway::test
