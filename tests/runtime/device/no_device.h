// Calls every entry of the device layer with CUDA device 3, for machines and builds without one,
// where each call must throw.
#pragma once

#include <cstddef>
#include <functional>
#include <map>
#include <string>

#include "runtime/device/device_memory.h"
#include "runtime/device/link_copy.h"
#include "runtime/device/stream.h"

namespace sluiceway::test {

inline constexpr DeviceId kCuda3 = DeviceId::cuda(3);

inline std::map<std::string, std::function<void()>> entries_for_device_3() {
  static std::byte bytes[8];
  return {
      {"check", [] { check_device(kCuda3); }},
      {"guard", [] { const DeviceGuard guard(kCuda3); }},
      {"owned stream", [] { Stream::owned(kCuda3, {"stream"}); }},
      {"borrowed stream", [] { Stream::borrowed(StreamRef::cuda(3, nullptr)); }},
      {"link", [] { LinkCopy(kCuda3, LinkDirection::kDeviceToHost, {}); }},
      {"link with a rate", [] { LinkCopy(kCuda3, LinkDirection::kHostToDevice, {.gbps = 1}); }},
      {"device bytes", [] { allocate_device_bytes(kCuda3, 8); }},
      {"pinned bytes", [] { allocate_pinned_bytes(kCuda3, 8); }},
      {"huge pinned bytes", [] { allocate_pinned_bytes(kCuda3, 8, Pages::kHuge); }},
      {"fill", [] { fill_device_bytes(kCuda3, bytes, std::byte{1}, 8); }},
      {"copy", [] { copy_device_bytes(kCuda3, bytes, bytes, 8); }},
  };
}

}  // namespace sluiceway::test
