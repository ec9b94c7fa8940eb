#include "tests/support/stream_hold.h"

#include <stdexcept>

namespace sluiceway::test {
namespace {

[[noreturn]] void no_device() { throw std::logic_error("stream_hold: this build has no CUDA"); }

}  // namespace

HoldWord::HoldWord(DeviceId) { no_device(); }
void HoldWord::hold(StreamRef) const { no_device(); }
void HoldWord::raise() const noexcept { (void)word_; }
void call_in_stream(StreamRef, std::function<void()>) { no_device(); }

}  // namespace sluiceway::test
