#include "runtime/memory/readback.h"

#include <exception>
#include <vector>

#include "runtime/device/device_memory.h"
#include "runtime/device/event_state.h"
#include "runtime/device/host_pages.h"
#include "runtime/device/link_copy.h"
#include "runtime/memory/buffer.h"

namespace sluiceway {
namespace {

// One copy in flight; the stream's thread records how it ended.
struct Arrival {
  HostEvent event;
  std::exception_ptr error;  // Written before the event is set.
};

}  // namespace

struct ReadbackBytes::State {
  State(Budget& budget, DeviceId device, std::size_t bytes, std::string_view purpose)
      : link(device, LinkDirection::kDeviceToHost, {}) {
    if (device.is_host()) {
      on_host.resize(bytes);
      return;
    }
    on_device = Buffer(budget, Tier::kDevice, device, bytes, purpose);
    pinned = Buffer(budget, Tier::kPinned, device, bytes, purpose);
  }

  LinkCopy link;  // Its own, so that its bytes do not count as payload.
  std::vector<std::byte> on_host;
  Buffer on_device, pinned;
  std::shared_ptr<Arrival> arrival;  // For the last fetch(); null: none.
};

ReadbackBytes::ReadbackBytes(Budget& budget, DeviceId device, std::size_t bytes,
                             std::string_view purpose)
    : state_(std::make_unique<State>(budget, device, bytes, purpose)) {}

std::uint64_t ReadbackBytes::reserved(Tier tier, DeviceId device, std::size_t bytes) noexcept {
  if (device.is_host()) return 0;
  if (tier == Tier::kPinned) return round_up(bytes, page_bytes(Pages::kOrdinary));
  return tier == Tier::kDevice ? bytes : 0;
}

ReadbackBytes::~ReadbackBytes() {
  if (state_->arrival != nullptr) state_->arrival->event.wait();
}

bool ReadbackBytes::copies() const noexcept { return state_->on_device.size() != 0; }

void ReadbackBytes::fetch(Stream& stream) {
  if (!copies()) return;
  const auto arrival = std::make_shared<Arrival>();
  stream.enqueue(
      [state = state_.get()](StreamRef ref) {
        state->link.copy(state->pinned.data(), state->on_device.data(), state->pinned.size(), ref);
      },
      [arrival](const Completion& completion) {
        arrival->error = completion.error;
        arrival->event.set();
      });
  state_->arrival = arrival;
}

void ReadbackBytes::wait() const {
  if (state_->arrival == nullptr) return;
  state_->arrival->event.wait();
  if (state_->arrival->error != nullptr) std::rethrow_exception(state_->arrival->error);
}

std::byte* ReadbackBytes::slots() const noexcept {
  return copies() ? state_->on_device.data() : state_->on_host.data();
}

const std::byte* ReadbackBytes::copy() const noexcept {
  return copies() ? state_->pinned.data() : state_->on_host.data();
}

}  // namespace sluiceway
