#include "tests/support/simt/calls.h"

#include <mutex>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "kernels/base/check.h"
#include "tests/support/simt/board.h"
#include "tests/support/simt/findings.h"
#include "tests/support/simt/simt.h"

namespace sluiceway::simt {

struct Faults {
  int error_of(std::string_view call) {  // Returns 0 if there is none.
    const std::lock_guard lock(mutex);
    for (Fault* const fault : all) {
      if (call != fault->call_ || fault->spared_-- > 0) continue;
      ++fault->times_;
      return fault->error_;
    }
    return 0;
  }

  std::mutex mutex;
  std::vector<Fault*> all;
};

namespace {

Faults& faults() {
  static Faults* const all = new Faults;
  return *all;
}

struct Counts {
  std::mutex mutex;
  Calls calls;
};

Counts& counts() {
  static Counts* const all = new Counts;
  return *all;
}

thread_local cudaError_t last_error = cudaSuccess;
thread_local bool in_host_function = false;

}  // namespace

Fault::Fault(const char* call, int error, int spared)
    : call_(call), error_(error), spared_(spared) {
  const std::lock_guard lock(faults().mutex);
  faults().all.push_back(this);
}

Fault::~Fault() {
  const std::lock_guard lock(faults().mutex);
  std::erase(faults().all, this);
}

int Fault::times() const {
  const std::lock_guard lock(faults().mutex);
  return times_;
}

void count(const char* call) {
  const std::string thread = this_thread_name();
  const std::lock_guard lock(counts().mutex);
  ++counts().calls.by_thread[thread][call];
}

Calls calls() {
  const std::lock_guard lock(counts().mutex);
  return counts().calls;
}

void reset_calls() {
  const std::lock_guard lock(counts().mutex);
  counts().calls = {};
}

std::uint64_t Calls::total(const std::string& call) const {
  std::uint64_t sum = 0;
  for (const auto& [thread, times] : by_thread) {
    const auto found = times.find(call);
    if (found != times.end()) sum += found->second;
  }
  return sum;
}

cudaError_t refused(const char* call) {
  count(call);
  if (in_host_function) {
    report(cudaErrorLaunchFailure, concat("simt: ", call,
                                          " in a host function of a stream, which must not call "
                                          "CUDA; let another thread call it"));
    return cudaErrorNotPermitted;
  }
  return static_cast<cudaError_t>(faults().error_of(call));
}

cudaError_t note(cudaError_t result) noexcept {
  if (result != cudaSuccess && result != device_error()) last_error = result;
  return result;
}

cudaError_t take_last_error() noexcept { return std::exchange(last_error, cudaSuccess); }

InHostFunction::InHostFunction() noexcept { in_host_function = true; }
InHostFunction::~InHostFunction() { in_host_function = false; }

}  // namespace sluiceway::simt
