#include "tests/support/simt/copies.h"

#include <cstring>
#include <functional>
#include <memory>
#include <utility>
#include <vector>

#include "kernels/base/check.h"
#include "tests/support/simt/arena.h"
#include "tests/support/simt/device_bytes.h"
#include "tests/support/simt/driver.h"
#include "tests/support/simt/findings.h"
#include "tests/support/simt/host_ranges.h"

namespace sluiceway::simt {
namespace {

constexpr int kLatePattern = 0xCD;

struct Copy {
  void* dst;
  const void* src;
  std::size_t bytes;
  bool from_device, to_device;
  std::string name;
  std::vector<std::byte> seen;  // Contents of a source in host memory; empty: not read yet.
  bool pageable = false;        // If true, `seen` is what is copied.
  std::unique_ptr<Stay> stay;
};

std::vector<std::byte> snapshot(const Copy& copy) {
  const auto* const first = static_cast<const std::byte*>(copy.src);
  return {first, first + copy.bytes};
}

// Bytes that were never written count as unwritten at their destination too.
void carry_unwritten(const Copy& copy) {
  const Marks* const from = Arena::holding(copy.src)->marks(copy.src);
  Marks* const to = Arena::holding(copy.dst)->marks(copy.dst);
  for (std::size_t i = 0; i < copy.bytes; ++i) {
    if (from[i].written().operation == Mark::kUnwritten) {
      to[i].set_written({.operation = Mark::kUnwritten});
    }
  }
}

// Runs before the delay of the copy.
void prepare(Copy& copy) {
  if (!copy.from_device && copy.seen.empty()) copy.seen = snapshot(copy);
  if (!copy.to_device) std::memset(copy.dst, kLatePattern, copy.bytes);
}

void run(Copy& copy, Running& running) {
  const bool from_host = !copy.from_device;
  if (from_host && !copy.pageable && std::memcmp(copy.seen.data(), copy.src, copy.bytes) != 0) {
    return report(cudaErrorLaunchFailure,
                  concat("simt: ", copy.name, ": its source in the host's memory at ", copy.src,
                         " has changed since it was asked for; do not write to it before an event "
                         "after the copy has happened"));
  }
  if (copy.from_device && !use_bytes(running, copy.name, copy.src, copy.bytes, Use::kCopied))
    return;
  if (copy.to_device && !use_bytes(running, copy.name, copy.dst, copy.bytes, Use::kWritten)) return;
  if (copy.from_device && copy.to_device) carry_unwritten(copy);
  const void* const src = from_host ? copy.seen.data() : Arena::host_view(copy.src);
  std::memmove(copy.to_device ? Arena::host_view(copy.dst) : copy.dst, src, copy.bytes);
}

bool kind_fits(cudaMemcpyKind kind, bool from_device, bool to_device) {
  switch (kind) {
    case cudaMemcpyHostToHost:
      return !from_device && !to_device;
    case cudaMemcpyHostToDevice:
      return !from_device && to_device;
    case cudaMemcpyDeviceToHost:
      return from_device && !to_device;
    case cudaMemcpyDeviceToDevice:
      return from_device && to_device;
    case cudaMemcpyDefault:
      return true;
  }
  return false;
}

}  // namespace

cudaError_t enqueue_copy(Worker& worker, void* dst, const void* src, std::size_t bytes,
                         cudaMemcpyKind kind) {
  auto copy = std::make_shared<Copy>();
  copy->dst = dst;
  copy->src = src;
  copy->bytes = bytes;
  copy->from_device = Arena::holding(src) != nullptr;
  copy->to_device = Arena::holding(dst) != nullptr;
  if (!kind_fits(kind, copy->from_device, copy->to_device)) return cudaErrorInvalidValue;
  if (bytes == 0) return cudaSuccess;
  copy->name = concat("cudaMemcpyAsync of ", bytes, " bytes from the ",
                      copy->from_device ? "device" : "host", " to the ",
                      copy->to_device ? "device" : "host");
  const bool waits = !copy->to_device && !page_locked(dst, bytes);
  copy->pageable = !copy->from_device && !page_locked(src, bytes);
  if (!copy->from_device && (copy->pageable || !awaits_write(src, bytes))) {
    copy->seen = snapshot(*copy);
  }
  if (!copy->pageable && !copy->from_device) copy->stay = std::make_unique<Stay>(src, bytes, false);
  if (!copy->to_device && !waits) copy->stay = std::make_unique<Stay>(dst, bytes, true);
  std::string name = copy->name;
  std::function<void()> before = [copy] { prepare(*copy); };
  {
    const DriverTurn turn("cudaMemcpyAsync");
    worker.enqueue(
        std::move(name),
        [copy = std::move(copy)](Running& running, Workshop&) { run(*copy, running); },
        std::move(before));
  }
  if (waits) worker.wait_idle("cudaMemcpyAsync");
  return device_error();
}

cudaError_t enqueue_fill(Worker& worker, void* dst, int value, std::size_t bytes) {
  if (Arena::holding(dst) == nullptr) return cudaErrorInvalidValue;
  const std::string name = concat("cudaMemsetAsync of ", bytes, " bytes");
  worker.enqueue(name, [=](Running& running, Workshop&) {
    if (!use_bytes(running, name, dst, bytes, Use::kWritten)) return;
    std::memset(Arena::host_view(dst), value, bytes);
  });
  return device_error();
}

}  // namespace sluiceway::simt
