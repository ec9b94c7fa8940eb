#include "tests/support/simt/loading.h"

#include <array>
#include <atomic>
#include <set>
#include <utility>

#include "kernels/base/check.h"
#include "tests/support/simt/arena.h"
#include "tests/support/simt/calls.h"
#include "tests/support/simt/current_device.h"
#include "tests/support/simt/findings.h"
#include "tests/support/simt/grid.h"
#include "tests/support/simt/simt.h"
#include "tests/support/simt/symbols.h"

namespace sluiceway::simt {
namespace {

struct Loaded {
  std::set<const void*> kernels;
  std::set<std::string> products;
  bool has_list = false;  // Some kernel was loaded before it was launched.
};

// Call it with the driver's lock.
Loaded& loaded_on(int device) {
  static auto* const all = new std::array<Loaded, Arena::kDevices>;
  return (*all)[static_cast<std::size_t>(device)];
}

std::atomic<int>& allowances() {
  static std::atomic<int> count{0};
  return count;
}

}  // namespace

UnlistedKernels::UnlistedKernels() { ++allowances(); }
UnlistedKernels::~UnlistedKernels() { --allowances(); }

LaunchTurn::LaunchTurn(int device, const void* kernel)
    : turn_(concat("a launch of kernel ", function_name(kernel))) {
  Loaded& loaded = loaded_on(device);
  if (!loaded.kernels.insert(kernel).second) return;
  if (loaded.has_list && allowances() == 0) {
    report(cudaErrorLaunchFailure,
           concat("simt: kernel ", function_name(kernel), " was launched on CUDA device ", device,
                  " and is not in the list of kernels that are loaded when a device is first used; "
                  "add it to the list"));
  }
  turn_.wait_until_idle();
}

LaunchTurn::LaunchTurn(int device, std::string product) : turn_(product) {
  if (loaded_on(device).products.insert(std::move(product)).second) turn_.wait_until_idle();
}

}  // namespace sluiceway::simt

namespace simt = sluiceway::simt;

extern "C" {

cudaError_t cudaFuncGetAttributes(cudaFuncAttributes* attributes, const void* kernel) {
  return simt::call_locked(__func__, [&](const simt::DriverTurn& turn) {
    simt::Loaded& loaded = simt::loaded_on(simt::current_device());
    if (loaded.kernels.insert(kernel).second) turn.wait_until_idle();
    loaded.has_list = true;
    *attributes = {.sharedSizeBytes = 0,
                   .maxThreadsPerBlock = static_cast<int>(simt::Workshop::kThreads),
                   .maxDynamicSharedSizeBytes = static_cast<int>(simt::Workshop::kSharedBytes)};
    return simt::device_error();
  });
}

}  // extern "C"
