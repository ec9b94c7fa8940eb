#include "tests/support/simt/current_device.h"

#include "kernels/base/check.h"
#include "tests/support/simt/arena.h"
#include "tests/support/simt/findings.h"

namespace sluiceway::simt {
namespace {

thread_local int current = Arena::kDevices - 1;

}  // namespace

int current_device() noexcept { return current; }

bool set_current_device(int device) noexcept {
  if (device < 0 || device >= Arena::kDevices) return false;
  current = device;
  return true;
}

cudaError_t expect_current(const char* call, const char* what, int device) {
  if (device == current) return cudaSuccess;
  report(cudaErrorInvalidResourceHandle,
         concat("simt: ", call, " with ", what, " of CUDA device ", device, " while device ",
                current, " is current; hold a DeviceGuard for the right device"));
  return cudaErrorInvalidResourceHandle;
}

}  // namespace sluiceway::simt
