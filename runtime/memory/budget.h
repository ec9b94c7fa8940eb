// The number of bytes that each tier may hold. Every allocation of the runtime reserves here first.
//
// Ownership:     a Reservation returns its bytes when it is destroyed.
// Thread safety: every call from any thread.
// Lifetime:      reservations keep the budget's ledger alive.
// Errors:        OutOfMemory names the bytes requested and used, the limit, and what to try;
//                nothing was reserved.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>

namespace sluiceway {

enum class Tier : std::uint8_t { kDevice, kHost, kPinned, kDisk };
inline constexpr std::size_t kTierCount = 4;
std::string_view to_string(Tier tier) noexcept;

class Budget {
  struct Ledger;

 public:
  static constexpr std::uint64_t kUnlimited = UINT64_MAX;
  using Limits = std::array<std::uint64_t, kTierCount>;  // Bytes, indexed by Tier.

  class Reservation {  // Move-only; a moved-from Reservation holds 0 bytes.
   public:
    Reservation() noexcept = default;
    Reservation(Reservation&& other) noexcept;
    Reservation& operator=(Reservation&& other) noexcept;
    ~Reservation();
    std::uint64_t bytes() const noexcept { return bytes_; }

   private:
    friend class Budget;
    std::shared_ptr<Ledger> ledger_;
    Tier tier_ = Tier::kDevice;
    std::uint64_t bytes_ = 0;
  };

  explicit Budget(Limits limits);
  static Budget unlimited();  // Counts, but never throws.

  // `purpose` tells in the error what the bytes are for: "moments of model.layers.0.q_proj".
  [[nodiscard]] Reservation reserve(Tier tier, std::uint64_t bytes, std::string_view purpose);

  std::uint64_t used(Tier tier) const noexcept;
  std::uint64_t peak(Tier tier) const noexcept;
  std::uint64_t limit(Tier tier) const noexcept;

 private:
  std::shared_ptr<Ledger> ledger_;
};

}  // namespace sluiceway
