#include "tests/support/backend.h"

#include <hwy/highway.h>

#include <ostream>
#include <sstream>

#include "runtime/device/device_memory.h"
#include "runtime/device/stream.h"

namespace sluiceway::test {
namespace {

DeviceId& current() {
  static DeviceId device = DeviceId::host();
  return device;
}

bool has_cuda_half(std::string_view operation) {
  std::istringstream halves(SLUICEWAY_CUDA_HALVES);  // Names, separated by blanks.
  for (std::string name; halves >> name;) {
    if (name == operation) return true;
  }
  return false;
}

}  // namespace

std::vector<Backend> host_backends() {
  std::vector<Backend> backends;
  // The fallback's bit depends on the compiler; the library was built with the same compiler.
  std::int64_t targets = (hwy::SupportedTargets() | HWY_STATIC_TARGET) & HWY_TARGETS;
  for (; targets != 0; targets &= targets - 1) {
    const std::int64_t lowest = targets & -targets;
    backends.push_back({DeviceId::host(), lowest, std::string("cpu_") + hwy::TargetName(lowest)});
  }
  return backends;
}

std::vector<Backend> built_backends(std::string_view operation) {
  std::vector<Backend> backends = host_backends();
  if (has_cuda_half(operation)) backends.push_back({DeviceId::cuda(0), 0, "cuda"});
  return backends;
}

std::vector<DeviceId> built_devices() {
  std::vector<DeviceId> devices = {DeviceId::host()};
  if (*SLUICEWAY_CUDA_HALVES != '\0') devices.push_back(DeviceId::cuda(0));
  return devices;
}

std::string device_name(const testing::TestParamInfo<DeviceId>& param) {
  return param.param.is_host() ? "cpu" : "cuda";
}

void PrintTo(const Backend& backend, std::ostream* out) { *out << backend.name; }

std::string backend_name(const testing::TestParamInfo<Backend>& param) { return param.param.name; }

DeviceId current_device() { return current(); }

std::uint32_t step_of_calls(std::uint32_t on_device) {
  return current_device().is_host() ? 1 : on_device;
}

void run_on_stream(DeviceId device, const std::function<void(StreamRef)>& work) {
  Stream stream = Stream::owned(device, {"sw-test"});
  stream.enqueue(work);
  stream.synchronize();
}

void BackendTest::SetUp() { select(GetParam()); }

void BackendTest::select(const Backend& backend) {
  current() = backend.device;
  check_device(current());
  if (!current().is_host()) return;
  hwy::SetSupportedTargetsForTest(backend.simd_target);
  hwy::GetChosenTarget().Update(hwy::SupportedTargets());
}

void BackendTest::TearDown() {
  current() = DeviceId::host();
  hwy::SetSupportedTargetsForTest(0);
  hwy::GetChosenTarget().DeInit();
}

}  // namespace sluiceway::test
