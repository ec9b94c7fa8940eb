#include "tests/support/simt/findings.h"

#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <deque>
#include <mutex>

#include "tests/support/simt/random.h"
#include "tests/support/simt/simt.h"

namespace sluiceway::simt {
namespace {

struct Findings {
  std::mutex mutex;
  std::vector<std::string> texts;
  std::deque<std::string> told;  // Texts that cudaGetErrorString() has returned.
  std::atomic<cudaError_t> error{cudaSuccess};
};

Findings& findings() {
  // Never destroyed: streams may end after every static object.
  static Findings* const all = new Findings;
  return *all;
}

void end_with_findings() {
  const std::vector<std::string>& texts = findings().texts;
  if (texts.empty()) return;
  for (const std::string& text : texts) std::fprintf(stderr, "%s\n", text.c_str());
  std::fprintf(stderr, "simt: %zu findings that no test has taken\n", texts.size());
  std::fflush(nullptr);
  std::_Exit(1);
}

std::atomic<std::uint64_t>& current_seed() {
  static std::atomic<std::uint64_t> value = [] {
    const char* const text = std::getenv("SLUICEWAY_SIMT_SEED");
    return text == nullptr ? std::uint64_t{1} : std::strtoull(text, nullptr, 10);
  }();
  return value;
}

}  // namespace

std::uint64_t seed() noexcept { return current_seed().load(); }
void set_seed(std::uint64_t seed) { current_seed().store(seed); }

void report(cudaError_t error, const std::string& text) {
  static const int registered = std::atexit(&end_with_findings);
  Findings& all = findings();
  const std::lock_guard lock(all.mutex);
  all.texts.push_back(registered == 0 ? text : text + " (atexit failed)");
  if (all.error == cudaSuccess) {
    all.told.push_back(text);
    all.error = error;
  }
}

cudaError_t device_error() noexcept { return findings().error.load(); }

const char* device_error_text() {
  Findings& all = findings();
  const std::lock_guard lock(all.mutex);
  return all.told.empty() ? "the device has failed" : all.told.back().c_str();
}

std::vector<std::string> clear_findings() {
  Findings& all = findings();
  const std::lock_guard lock(all.mutex);
  all.error = cudaSuccess;
  return std::exchange(all.texts, {});
}

}  // namespace sluiceway::simt
