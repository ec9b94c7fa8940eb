#include "runtime/schedule/hop.h"

#include <atomic>
#include <utility>

#include "kernels/base/error.h"

namespace sluiceway {

// The exchange decides whose call counts; `end_` needs no order from it, since nobody but the
// winner touches it before the last owner, which the shared count orders behind every call.
class HopDone::Token {
 public:
  explicit Token(End end) noexcept : end_(std::move(end)) {}
  Token(const Token&) = delete;
  Token& operator=(const Token&) = delete;
  ~Token() {
    if (called_.load(std::memory_order_relaxed)) return;
    call(std::make_exception_ptr(
        Error("HopDone: let go of without a call, expected one call for each start()")));
  }

  void call(std::exception_ptr error) {
    if (called_.exchange(true, std::memory_order_relaxed)) return;
    const End end = std::move(end_);  // What it holds is let go as soon as it was called.
    end(std::move(error));
  }

 private:
  std::atomic<bool> called_{false};
  End end_;
};

HopDone::HopDone(End end) : token_(std::make_shared<Token>(std::move(end))) {}

void HopDone::operator()(std::exception_ptr error) const { token_->call(std::move(error)); }

}  // namespace sluiceway
