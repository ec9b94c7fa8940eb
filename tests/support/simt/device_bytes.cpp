#include "tests/support/simt/device_bytes.h"

#include "kernels/base/check.h"
#include "tests/support/simt/arena.h"
#include "tests/support/simt/findings.h"

namespace sluiceway::simt {
namespace {

// Says what forbids it; "" if nothing does.
std::string objection(Running& running, const Marks& byte, Use use) {
  const Mark written = byte.written();
  if (written.operation == Mark::kNobody) return ", expected device memory";
  if (written.operation == Mark::kUnwritten && use == Use::kRead) {
    return ", which nobody has written";
  }
  const auto beside = [](const char* verb, Mark mark) {
    return concat(verb, operation(mark.operation).name,
                  " on another stream; wait for an event after it");
  };
  if (!running.comes_after(written.operation)) return beside(", which was written by ", written);
  if (use == Use::kWritten && !running.comes_after(byte.read().operation)) {
    return beside(", which was read by ", byte.read());
  }
  return "";
}

void mark(Running& running, Marks& byte, Use use) {
  const Mark mine{.operation = running.id()};
  if (use == Use::kWritten) {
    byte.set_written(mine);
  } else if (running.comes_after(byte.read().operation)) {  // As for kernels (witness.cpp).
    byte.set_read(mine);
  }
}

}  // namespace

bool use_bytes(Running& running, const std::string& name, const void* first, std::size_t bytes,
               Use use) {
  if (bytes == 0) return true;
  Arena* const arena = Arena::holding(first);
  if (arena == nullptr) {
    report(cudaErrorIllegalAddress, concat("simt: ", name, ": the host's memory at ", first,
                                           ", expected device memory; copy it there"));
    return false;
  }
  Marks* const marks = arena->marks(first);
  Marks before;  // Neighbouring bytes mostly have the same record, and then change alike.
  for (std::size_t i = 0; i < bytes; ++i) {
    if (i != 0 && marks[i] == before) {
      marks[i] = marks[i - 1];
      continue;
    }
    before = marks[i];
    const std::string text = objection(running, marks[i], use);
    if (text.empty()) {
      mark(running, marks[i], use);
      continue;
    }
    const bool absent = before.written().operation == Mark::kNobody;
    report(absent ? cudaErrorIllegalAddress : cudaErrorLaunchFailure,
           concat("simt: ", name, ": ", arena->describe(static_cast<const std::byte*>(first) + i),
                  text));
    return false;
  }
  return true;
}

}  // namespace sluiceway::simt
