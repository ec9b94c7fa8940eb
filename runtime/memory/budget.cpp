#include "runtime/memory/budget.h"

#include <atomic>
#include <utility>

#include "kernels/base/check.h"

namespace sluiceway {

// `used` never exceeds `limit`: an exchange adds a reservation only if it saw room for it. The
// counts publish nothing but themselves, so their order is relaxed.
struct Budget::Ledger {
  struct Account {
    std::uint64_t limit = kUnlimited;
    std::atomic<std::uint64_t> used{0};
    std::atomic<std::uint64_t> peak{0};
  };

  Account& operator[](Tier tier) noexcept { return accounts[static_cast<std::size_t>(tier)]; }

  std::array<Account, kTierCount> accounts;
};

namespace {

void raise_to(std::atomic<std::uint64_t>& peak, std::uint64_t used) noexcept {
  std::uint64_t seen = peak.load(std::memory_order_relaxed);
  while (seen < used && !peak.compare_exchange_weak(seen, used, std::memory_order_relaxed)) {
  }
}

[[noreturn]] void refuse(Tier tier, std::uint64_t bytes, std::string_view purpose,
                         std::uint64_t used, std::uint64_t limit) {
  throw OutOfMemory(concat("budget: ", to_string(tier), " tier: ", purpose, " needs ",
                           format_bytes(bytes), ", but only ", format_bytes(limit - used),
                           " are free: ", format_bytes(used), " of ", format_bytes(limit),
                           " are reserved; raise budget.", to_string(tier),
                           " or make the model, the batch or the ratio smaller"));
}

}  // namespace

std::string_view to_string(Tier tier) noexcept {
  static constexpr std::array<std::string_view, kTierCount> kNames = {"device", "host", "pinned",
                                                                      "disk"};
  return kNames[static_cast<std::size_t>(tier)];
}

Budget::Budget(Limits limits) : ledger_(std::make_shared<Ledger>()) {
  for (std::size_t i = 0; i < kTierCount; ++i) ledger_->accounts[i].limit = limits[i];
}

Budget Budget::unlimited() {
  Limits limits;
  limits.fill(kUnlimited);
  return Budget(limits);
}

Budget::Reservation Budget::reserve(Tier tier, std::uint64_t bytes, std::string_view purpose) {
  Ledger::Account& account = (*ledger_)[tier];
  std::uint64_t used = account.used.load(std::memory_order_relaxed);
  do {
    if (bytes > account.limit - used) refuse(tier, bytes, purpose, used, account.limit);
  } while (!account.used.compare_exchange_weak(used, used + bytes, std::memory_order_relaxed));
  raise_to(account.peak, used + bytes);

  Reservation reservation;
  reservation.ledger_ = ledger_;
  reservation.tier_ = tier;
  reservation.bytes_ = bytes;
  return reservation;
}

std::uint64_t Budget::used(Tier tier) const noexcept {
  return (*ledger_)[tier].used.load(std::memory_order_relaxed);
}

std::uint64_t Budget::peak(Tier tier) const noexcept {
  return (*ledger_)[tier].peak.load(std::memory_order_relaxed);
}

std::uint64_t Budget::limit(Tier tier) const noexcept { return (*ledger_)[tier].limit; }

Budget::Reservation::Reservation(Reservation&& other) noexcept
    : ledger_(std::move(other.ledger_)),
      tier_(other.tier_),
      bytes_(std::exchange(other.bytes_, 0)) {}

Budget::Reservation& Budget::Reservation::operator=(Reservation&& other) noexcept {
  Reservation taken(std::move(other));
  std::swap(ledger_, taken.ledger_);
  std::swap(tier_, taken.tier_);
  std::swap(bytes_, taken.bytes_);
  return *this;
}

Budget::Reservation::~Reservation() {
  if (ledger_ != nullptr) (*ledger_)[tier_].used.fetch_sub(bytes_, std::memory_order_relaxed);
}

}  // namespace sluiceway
