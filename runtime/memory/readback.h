// Results that kernels leave for the host: one slot each, and all of them copied at once.
//
//   slots   count x T   host device: host memory, and nothing is copied
//                       CUDA: device memory, and a page-locked copy of it
//
// slot(i) is what a kernel writes to; fetch() enqueues one small copy behind what the stream has
// been given; get(i) waits until that copy has come, asleep.
//
// Ownership:     on a CUDA device its bytes are reserved (reserved()), on two tiers; on the
//                host device they are a few words that no budget counts.
// Thread safety: one thread at a time.
// Lifetime:      the last copy has come before ~Readback() returns.
// Errors:        OutOfMemory, with byte counts. get(): what the copy failed with.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string_view>
#include <type_traits>

#include "runtime/device/stream.h"
#include "runtime/memory/budget.h"

namespace sluiceway {

class ReadbackBytes {  // What Readback is for every T.
 public:
  ReadbackBytes(Budget& budget, DeviceId device, std::size_t bytes, std::string_view purpose);
  // What one of so many bytes reserves of a tier: itself, and its copy in whole pages.
  static std::uint64_t reserved(Tier tier, DeviceId device, std::size_t bytes) noexcept;
  ReadbackBytes(const ReadbackBytes&) = delete;
  ReadbackBytes& operator=(const ReadbackBytes&) = delete;
  ~ReadbackBytes();

  bool copies() const noexcept;  // Whether get() is behind by a fetch().
  void fetch(Stream& stream);
  void wait() const;

 protected:
  std::byte* slots() const noexcept;  // What kernels write to.
  const std::byte* copy() const noexcept;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

template <typename T>
requires std::is_trivially_copyable_v<T>
class Readback : public ReadbackBytes {
 public:
  Readback(Budget& budget, DeviceId device, std::size_t count, std::string_view purpose)
      : ReadbackBytes(budget, device, count * sizeof(T), purpose) {}

  static std::uint64_t reserved(Tier tier, DeviceId device, std::size_t count) noexcept {
    return ReadbackBytes::reserved(tier, device, count * sizeof(T));
  }

  T* slot(std::size_t i) const noexcept { return reinterpret_cast<T*>(slots()) + i; }

  // What the slot held when the last fetch() came to it; on the host device, what it holds.
  T get(std::size_t i) const {
    wait();
    return reinterpret_cast<const T*>(copy())[i];
  }
};

}  // namespace sluiceway
