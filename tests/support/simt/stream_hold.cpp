// tests/support/stream_hold.h on this machine.
#include "tests/support/stream_hold.h"

#include <atomic>
#include <utility>

#include "tests/support/simt/simt.h"

namespace sluiceway::test {

HoldWord::HoldWord(DeviceId) : word_(new std::uint32_t(0)) {}

void HoldWord::hold(StreamRef stream) const { simt::wait_for_word(stream.native(), word_); }

void HoldWord::raise() const noexcept {
  std::atomic_ref(*word_).store(1, std::memory_order_release);
}

void call_in_stream(StreamRef stream, std::function<void()> function) {
  simt::call_on_host(stream.native(), std::move(function));
}

}  // namespace sluiceway::test
