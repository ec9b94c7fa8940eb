#include "runtime/trace/warning.h"

#include <cstdio>
#include <mutex>
#include <utility>

namespace sluiceway {
namespace {

struct Current {
  std::mutex mutex;
  WarningHandler handler;
};

Current& current() {
  static Current* const one = new Current;  // Outlives every thread.
  return *one;
}

}  // namespace

WarningHandler set_warning_handler(WarningHandler handler) {
  const std::lock_guard lock(current().mutex);
  return std::exchange(current().handler, std::move(handler));
}

void warn(const std::string& text) {
  std::unique_lock lock(current().mutex);
  const WarningHandler handler = current().handler;
  lock.unlock();
  if (handler) return handler(text);
  std::fprintf(stderr, "sluiceway: warning: %s\n", text.c_str());
}

}  // namespace sluiceway
