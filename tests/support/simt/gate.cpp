#include "tests/support/simt/gate.h"

#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <mutex>
#include <vector>

#include "kernels/base/check.h"
#include "tests/support/simt/board.h"
#include "tests/support/simt/findings.h"
#include "tests/support/simt/simt.h"

namespace sluiceway::simt {
namespace {

struct Gate {
  std::mutex mutex;
  std::condition_variable changed;
  std::vector<int> holders;  // Threads, one entry for each Hold.
  std::string holder_name;   // Name of the last holder.
};

Gate& gate() {
  static Gate* const one = new Gate;
  return *one;
}

bool is_open() { return gate().holders.empty() || device_error() != cudaSuccess; }

}  // namespace

Hold::Hold() : thread_id_(gettid()) {
  std::string name = this_thread_name();
  const std::lock_guard lock(gate().mutex);
  gate().holders.push_back(thread_id_);
  gate().holder_name = std::move(name);
}

Hold::~Hold() {
  const std::lock_guard lock(gate().mutex);
  gate().holders.erase(std::find(gate().holders.begin(), gate().holders.end(), thread_id_));
  gate().changed.notify_all();
}

void pass_gate() {
  std::unique_lock lock(gate().mutex);
  if (is_open()) return;
  std::string text = concat("waits until thread ", gate().holder_name, " lets go of the device");
  lock.unlock();  // The board locks this mutex under its own.
  const Blocked blocked({Obstacle::By::kHold, std::move(text), [] {
                           const std::lock_guard held(gate().mutex);
                           return is_open();
                         }});
  lock.lock();
  while (!gate().changed.wait_for(lock, std::chrono::milliseconds(20), is_open)) {
  }
  lock.unlock();
}

bool holds_device(int thread_id) noexcept {
  const std::lock_guard lock(gate().mutex);
  const std::vector<int>& holders = gate().holders;
  return std::find(holders.begin(), holders.end(), thread_id) != holders.end();
}

}  // namespace sluiceway::simt
