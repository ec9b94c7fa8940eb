#include "runtime/schedule/hop.h"

#include <atomic>
#include <utility>

#include "kernels/base/error.h"

namespace sluiceway {

// The exchange decides which call counts. `end_` needs no ordering from it: only the winner touches
// it before the last owner, which the shared count orders after every call.
class HopDone::Token {
 public:
  explicit Token(End end) noexcept : end_(std::move(end)) {}
  Token(const Token&) = delete;
  Token& operator=(const Token&) = delete;
  ~Token() {
    if (called_.load(std::memory_order_relaxed)) return;
    call(std::make_exception_ptr(
        Error("HopDone: destroyed without a call; call it once for each start()")));
  }

  void call(std::exception_ptr error) {
    if (called_.exchange(true, std::memory_order_relaxed)) return;
    const End end = std::move(end_);  // Its captured objects are destroyed right after the call.
    end(std::move(error));
  }

 private:
  std::atomic<bool> called_{false};
  End end_;
};

HopDone::HopDone(End end) : token_(std::make_shared<Token>(std::move(end))) {}

void HopDone::operator()(std::exception_ptr error) const { token_->call(std::move(error)); }

}  // namespace sluiceway
