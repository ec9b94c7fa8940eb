#include "runtime/engine/zo/master_snapshot.h"

#include "kernels/base/check.h"
#include "runtime/device/event_state.h"

namespace sluiceway {

MasterSnapshot::MasterSnapshot(std::uint64_t step, std::size_t weights)
    : step_(step), weights_(weights), unread_(weights) {
  for (Weight& weight : weights_) weight.read = std::make_shared<HostEvent>();
}

void MasterSnapshot::throw_if_failed(const std::unique_lock<std::mutex>&) const {
  if (error_) std::rethrow_exception(error_);
}

void MasterSnapshot::wait(std::size_t weight) {
  std::unique_lock lock(mutex_);
  SLUICEWAY_CHECK(weight < weights_.size(), "snapshot: weight ", weight, ", expected below ",
                  weights_.size());
  const Weight& read = weights_[weight];
  changed_.wait(lock, [&] { return read.has_landed || read.is_read; });
  throw_if_failed(lock);
  check_unread(weight, lock);
}

void MasterSnapshot::check_unread(std::size_t weight, const std::unique_lock<std::mutex>&) const {
  SLUICEWAY_CHECK(!weights_[weight].is_read, "snapshot: weight ", weight,
                  " was let go already; read it before let_go()");
}

void MasterSnapshot::let_go(std::size_t weight) {
  std::shared_ptr<HostEvent> read;
  {
    std::unique_lock lock(mutex_);
    throw_if_failed(lock);
    Weight& gone = weights_.at(weight);
    check_unread(weight, lock);
    gone.is_read = true;
    --unread_;
    read = gone.read;
    changed_.notify_all();
  }
  read->set();  // Whoever has waited for it begins.
}

void MasterSnapshot::let_go_of_all() noexcept {
  {
    const std::lock_guard lock(mutex_);
    for (Weight& weight : weights_) weight.is_read = true;
    unread_ = 0;
    changed_.notify_all();
  }
  for (const Weight& weight : weights_) weight.read->set();
}

void MasterSnapshot::land(std::size_t weight) noexcept {
  const std::lock_guard lock(mutex_);
  weights_[weight].has_landed = true;
  changed_.notify_all();
}

Event MasterSnapshot::read(std::size_t weight) const { return Event(weights_.at(weight).read); }

bool MasterSnapshot::has_failed() const noexcept {
  const std::lock_guard lock(mutex_);
  return error_ != nullptr;
}

bool MasterSnapshot::is_read() const noexcept {
  const std::lock_guard lock(mutex_);
  return unread_ == 0;
}

bool MasterSnapshot::wait_until_read(std::size_t weight, std::chrono::milliseconds most) {
  std::unique_lock lock(mutex_);
  return changed_.wait_for(lock, most, [&] { return weights_.at(weight).is_read; });
}

bool MasterSnapshot::wait_until_read(std::chrono::milliseconds most) {
  std::unique_lock lock(mutex_);
  return changed_.wait_for(lock, most, [&] { return unread_ == 0; });
}

void MasterSnapshot::fail(std::exception_ptr error) noexcept {
  {
    const std::lock_guard lock(mutex_);
    if (unread_ == 0) return;
    error_ = std::move(error);
  }
  let_go_of_all();
}

}  // namespace sluiceway
