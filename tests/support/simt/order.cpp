#include "tests/support/simt/order.h"

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <mutex>
#include <utility>

#include "tests/support/simt/mark.h"

namespace sluiceway::simt {
namespace {

struct Ledger {
  std::mutex mutex;
  std::shared_ptr<const Clock> host = std::make_shared<Clock>();
  std::vector<std::uint32_t> last_number;  // By stream.
  std::vector<std::uint32_t> free_streams;
  std::vector<Operation> operations{kFirstOperation};
};

Ledger& ledger() {
  static Ledger* const all = new Ledger;
  return *all;
}

}  // namespace

void Clock::merge(const Clock& other) {
  if (numbers_.size() < other.numbers_.size()) numbers_.resize(other.numbers_.size());
  for (std::size_t i = 0; i < other.numbers_.size(); ++i) {
    numbers_[i] = std::max(numbers_[i], other.numbers_[i]);
  }
}

void Clock::advance(std::uint32_t stream, std::uint32_t number) {
  if (numbers_.size() <= stream) numbers_.resize(stream + 1);
  numbers_[stream] = std::max(numbers_[stream], number);
}

std::shared_ptr<const Clock> host_clock() {
  const std::lock_guard lock(ledger().mutex);
  return ledger().host;
}

void host_has_waited(const Clock& clock) {
  const std::lock_guard lock(ledger().mutex);
  auto merged = std::make_shared<Clock>(*ledger().host);
  merged->merge(clock);
  ledger().host = std::move(merged);
}

std::uint32_t take_stream_number() {
  Ledger& all = ledger();
  const std::lock_guard lock(all.mutex);
  if (all.free_streams.empty()) {
    all.last_number.push_back(0);
    return static_cast<std::uint32_t>(all.last_number.size() - 1);
  }
  const std::uint32_t number = all.free_streams.back();
  all.free_streams.pop_back();
  return number;
}

void give_back_stream_number(std::uint32_t number) {
  const std::lock_guard lock(ledger().mutex);
  ledger().free_streams.push_back(number);
}

std::uint32_t new_operation(std::uint32_t stream, std::string name) {
  Ledger& all = ledger();
  const std::lock_guard lock(all.mutex);
  all.operations.push_back({stream, ++all.last_number[stream], std::move(name)});
  const std::size_t id = all.operations.size() - 1;
  if (id > Mark::kLastOperation) {
    std::fprintf(stderr, "simt: more than %u operations in one program\n", Mark::kLastOperation);
    std::abort();
  }
  return static_cast<std::uint32_t>(id);
}

Operation operation(std::uint32_t id) {
  const std::lock_guard lock(ledger().mutex);
  return ledger().operations[id];
}

bool Running::comes_after(std::uint32_t other) noexcept {
  if (other < kFirstOperation || other == id_) return true;
  if (before_[other % 64] == other) return true;
  if (beside_[other % 64] == other) return false;
  const Operation asked = operation(other);
  const bool after = clock_->at(asked.stream) >= asked.number;
  (after ? before_ : beside_)[other % 64] = other;
  return after;
}

}  // namespace sluiceway::simt
