// A drive that fails on request, around one that works: errors, short and torn transfers, requests
// that never end, completions out of order, flushes that fail.
//
// Requests of a kind count from 1, in order of submission. A fault applies to `times` of them, from
// number `first` on; the latest fault set wins.
//
// Ownership:     release() before destruction, if anything was held.
// Thread safety: every call from any thread.
#pragma once

#include <array>
#include <chrono>
#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <vector>

#include "runtime/device/worker.h"
#include "runtime/store/raw_io.h"
#include "tests/support/rng.h"

namespace sluiceway::test {

class FaultIo final : public RawIo {
 public:
  struct Span {
    std::uint64_t first = 1;
    std::uint64_t times = 1;
  };
  static constexpr Span kAlways{1, UINT64_MAX - 1};

  explicit FaultIo(std::unique_ptr<RawIo> inner);
  ~FaultIo() override;

  void fail(IoKind kind, Span span, int error_number);  // Transfers nothing.
  void tear(Span span, int error_number);  // A write transfers some sectors of 512 bytes.
  void shorten(IoKind kind, Span span, std::size_t bytes);  // Transfers at most these.
  void hold(IoKind kind, Span span);                        // Transferred, completed by release().
  void release();
  void fail_flush(Span span, int error_number);
  void fail_grow(int error_number) { grow_error_ = error_number; }
  void hold_flush(std::chrono::milliseconds time) { flush_time_ = time; }
  void reorder(std::uint64_t seed);  // From now on completions come in any order.

  std::uint64_t submitted(IoKind kind) const;

  void submit(const RawRequest& request, Done done) override;
  int flush() noexcept override;
  int grow(std::uint64_t size_bytes) noexcept override {
    return grow_error_ != 0 ? grow_error_ : inner_->grow(size_bytes);
  }
  std::uint64_t size_bytes() const noexcept override { return inner_->size_bytes(); }

 private:
  enum class What { kFail, kTear, kShorten, kHold };
  struct Fault {
    IoKind kind;
    Span span;
    What what;
    int error_number;
    std::size_t bytes;
  };
  struct Ended {
    Done done;
    RawResult result;
  };

  void tell(Fault fault);
  std::optional<Fault> next_fault(IoKind kind);
  void forward(const RawRequest& request, Done done);
  void hold_back(const RawRequest& request, Done done);
  void forward_torn(const RawRequest& request, int error_number, Done done);
  void ended(Ended one);

  mutable std::mutex mutex_;
  std::vector<Fault> faults_;
  std::array<std::uint64_t, 2> submitted_{};
  std::optional<Span> flush_span_;
  int flush_error_ = 0;
  int grow_error_ = 0;
  std::chrono::milliseconds flush_time_{0};
  std::uint64_t flushes_ = 0;
  std::uint64_t releases_ = 0;
  std::vector<Ended> held_;   // For release().
  std::optional<Rng> order_;  // Set: completions wait in shuffled_.
  Rng sectors_{20240611};
  std::vector<Ended> shuffled_;
  std::size_t outstanding_ = 0;  // Completions still to pass through shuffled_.
  std::unique_ptr<RawIo> inner_;
  std::optional<Worker> thread_;  // Completes requests that the inner drive never sees.
};

}  // namespace sluiceway::test
