// Results that kernels leave for the host: one slot each, all copied together.
//
//   slots   count x T   host device: host memory, and nothing is copied
//                       CUDA: device memory, and a page-locked copy of it
//
// Kernels write to slot(i); fetch() enqueues one small copy after the work of the stream; get(i)
// sleeps until that copy has arrived.
//
// Ownership:     on a CUDA device its bytes are reserved on two tiers (reserved()); on the host
//                device they are a few words that no budget counts.
// Thread safety: one thread at a time.
// Lifetime:      ~Readback() waits for the last copy.
// Errors:        OutOfMemory, with byte counts. get() throws the error of the copy.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string_view>
#include <type_traits>

#include "runtime/device/stream.h"
#include "runtime/memory/budget.h"

namespace sluiceway {

class ReadbackBytes {  // The part of Readback that does not depend on T.
 public:
  ReadbackBytes(Budget& budget, DeviceId device, std::size_t bytes, std::string_view purpose);
  // Returns the bytes that a Readback of `bytes` reserves on a tier: its slots, and their copy in
  // whole pages.
  static std::uint64_t reserved(Tier tier, DeviceId device, std::size_t bytes) noexcept;
  ReadbackBytes(const ReadbackBytes&) = delete;
  ReadbackBytes& operator=(const ReadbackBytes&) = delete;
  ~ReadbackBytes();

  bool copies() const noexcept;  // True if get() needs a fetch() to see new results.
  void fetch(Stream& stream);
  void wait() const;

 protected:
  std::byte* slots() const noexcept;  // Kernels write here.
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

  // Returns the slot's value when the last fetch() reached it; on the host device, its current
  // value.
  T get(std::size_t i) const {
    wait();
    return reinterpret_cast<const T*>(copy())[i];
  }
};

}  // namespace sluiceway
