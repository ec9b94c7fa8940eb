#include "runtime/memory/buffer.h"

#include <cstdint>
#include <utility>

#include "kernels/base/check.h"
#include "runtime/device/device_memory.h"
#include "runtime/memory/scribble.h"

namespace sluiceway {
namespace {

// Returns where a tier's bytes live: only the device tier uses the device's own memory.
DeviceId home(Tier tier, DeviceId device) noexcept {
  return tier == Tier::kHost ? DeviceId::host() : device;
}

bool on_host(Tier tier, DeviceId device) noexcept {
  return tier != Tier::kDevice || device.is_host();
}

std::uint64_t reserved_bytes(Tier tier, std::size_t bytes, Pages pages, std::string_view purpose) {
  SLUICEWAY_CHECK(
      tier != Tier::kDisk, "buffer: ", purpose, ": ", format_bytes(bytes),
      " on the disk tier; use device, host or pinned, since only the store uses the disk");
  if (tier != Tier::kPinned) return bytes;
  const std::size_t page = page_bytes(pages);
  SLUICEWAY_CHECK(bytes <= SIZE_MAX - page, "buffer: ", purpose, ": ", format_bytes(bytes),
                  ", expected at most ", format_bytes(SIZE_MAX - page));
  return round_up(bytes, page);
}

PinnedBytes allocate(Tier tier, DeviceId device, std::size_t bytes, Pages pages) {
  if (tier == Tier::kPinned) return allocate_pinned_bytes(device, bytes, pages);
  return {allocate_device_bytes(home(tier, device), bytes), false};
}

void deallocate(Tier tier, DeviceId device, PinnedBytes held, std::size_t bytes,
                Pages pages) noexcept {
  if (tier == Tier::kPinned) {
    free_pinned_bytes(held, bytes, pages);
  } else {
    free_device_bytes(home(tier, device), held.data, bytes);
  }
}

}  // namespace

Buffer::Buffer(Budget& budget, Tier tier, DeviceId device, std::size_t bytes,
               std::string_view purpose, Fill fill, Pages pages)
    : reservation_(budget.reserve(tier, reserved_bytes(tier, bytes, pages, purpose), purpose)),
      held_(allocate(tier, device, bytes, pages)),
      bytes_(bytes),
      tier_(tier),
      pages_(pages),
      device_(device) {
  if (fill == Fill::kNone && !scribbles()) return;
  const std::byte value = fill == Fill::kZero ? std::byte{0} : kScribble;
  try {
    fill_device_bytes(on_host(tier, device) ? DeviceId::host() : device, held_.data, value, bytes_);
  } catch (...) {
    release();
    throw;
  }
}

Buffer::Buffer(Buffer&& other) noexcept
    : reservation_(std::move(other.reservation_)),
      held_(std::exchange(other.held_, {})),
      bytes_(std::exchange(other.bytes_, 0)),
      tier_(other.tier_),
      pages_(other.pages_),
      device_(other.device_) {}

Buffer& Buffer::operator=(Buffer&& other) noexcept {
  Buffer taken(std::move(other));
  std::swap(reservation_, taken.reservation_);
  std::swap(held_, taken.held_);
  std::swap(bytes_, taken.bytes_);
  std::swap(tier_, taken.tier_);
  std::swap(pages_, taken.pages_);
  std::swap(device_, taken.device_);
  return *this;
}

Buffer::~Buffer() { release(); }

void Buffer::release() noexcept {
  if (held_.data == nullptr) return;
  if (on_host(tier_, device_)) scribble(data(), bytes_);
  deallocate(tier_, device_, std::exchange(held_, {}), std::exchange(bytes_, 0), pages_);
}

}  // namespace sluiceway
