#include "runtime/engine/zo/arena_pass.h"

#include <algorithm>
#include <condition_variable>
#include <memory>
#include <mutex>
#include <utility>
#include <vector>

#include "kernels/base/check.h"
#include "runtime/memory/buffer.h"

namespace sluiceway {
namespace {

constexpr std::size_t kReadAhead = 2;

// How the requests of the buffers stand; handlers hold it too, since the last one to end a request
// may still be in it when the pass is over.
class Requests {
 public:
  explicit Requests(std::size_t count) : slots_(count) {}

  void begin(std::size_t slot) {
    const std::lock_guard lock(mutex_);
    slots_[slot].in_flight = true;
  }
  void end(std::size_t slot, std::exception_ptr error) {
    const std::lock_guard lock(mutex_);
    slots_[slot] = {false, std::move(error)};
    changed_.notify_all();
  }
  std::exception_ptr wait(std::size_t slot) {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [&] { return !slots_[slot].in_flight; });
    return std::exchange(slots_[slot].error, nullptr);
  }

 private:
  struct Slot {
    bool in_flight = false;
    std::exception_ptr error;
  };
  std::mutex mutex_;
  std::condition_variable changed_;
  std::vector<Slot> slots_;
};

class Pass {
 public:
  Pass(ChunkStore& store, const ArenaPlan& plan, Budget& budget, const ArenaPass& pass)
      : store_(store),
        plan_(plan),
        pass_(pass),
        slots_(pass_buffers(plan)),
        requests_(std::make_shared<Requests>(slots_)),
        memory_(budget, Tier::kHost, DeviceId::host(), pass_bytes(plan), "chunks of the arena") {
    void* start = memory_.data();
    std::size_t room = memory_.size();
    aligned_ = static_cast<std::byte*>(std::align(kBlockBytes, 1, start, room));
  }
  Pass(const Pass&) = delete;
  Pass& operator=(const Pass&) = delete;
  ~Pass() {
    for (std::size_t slot = 0; slot < slots_; ++slot) requests_->wait(slot);
  }

  void run() {
    const std::size_t count = plan_.pieces().size();
    const std::size_t ahead = pass_.reads ? std::min(kReadAhead, slots_ - 1) : 0;
    std::uint64_t all = 0, done = 0;
    for (const ArenaPiece& piece : plan_.pieces()) all += piece.bytes;
    std::size_t begun = 0;
    for (std::size_t p = 0; p < count; ++p) {
      if (pass_.progress) pass_.progress(done, all);
      for (; begun < std::min(count, p + 1 + ahead); ++begun) start(begun);
      wait(p);
      const ArenaPiece& piece = plan_.pieces()[p];
      if (pass_.act(piece, blocks(p)) && pass_.writes) {
        request(p, [&](ChunkStore::Done ended) {
          store_.write(piece.chunk, blocks(p), std::move(ended));
        });
      }
      done += piece.bytes;
    }
    for (std::size_t p = count - slots_; p < count; ++p) wait(p);
    if (pass_.progress) pass_.progress(done, all);
  }

 private:
  std::span<std::byte> blocks(std::size_t p) const {
    return {aligned_ + p % slots_ * plan_.largest_chunk_bytes(), plan_.pieces()[p].stored_bytes};
  }

  // The buffer of a piece, as soon as what was in it is written; with the piece, or zeros.
  void start(std::size_t p) {
    if (p >= slots_) wait(p - slots_);
    if (!pass_.reads) {
      std::ranges::fill(blocks(p), std::byte{0});
      return;
    }
    request(p, [&](ChunkStore::Done ended) {
      store_.read(plan_.pieces()[p].chunk, Version::kLive, blocks(p), std::move(ended));
    });
  }

  template <typename Start>
  void request(std::size_t p, const Start& start) {
    const std::size_t slot = p % slots_;
    const ArenaWeight& weight = plan_.weights()[plan_.pieces()[p].weight];
    requests_->begin(slot);
    try {
      start([requests = requests_, slot, &weight](const std::exception_ptr& error) {
        requests->end(slot, error ? of_weight(error, weight) : nullptr);
      });
    } catch (...) {
      requests_->end(slot, nullptr);
      throw;
    }
  }

  void wait(std::size_t p) {
    if (std::exception_ptr error = requests_->wait(p % slots_)) {
      std::rethrow_exception(std::move(error));
    }
  }

  ChunkStore& store_;
  const ArenaPlan& plan_;
  const ArenaPass& pass_;
  std::size_t slots_;
  std::shared_ptr<Requests> requests_;
  Buffer memory_;
  std::byte* aligned_ = nullptr;
};

}  // namespace

std::size_t pass_buffers(const ArenaPlan& plan) noexcept {
  return std::min(kPassBuffers, plan.pieces().size());
}

// A block more, since the buffer begins on a cache line alone.
std::uint64_t pass_bytes(const ArenaPlan& plan) noexcept {
  return pass_buffers(plan) * plan.largest_chunk_bytes() + kBlockBytes;
}

void run_pass(ChunkStore& store, const ArenaPlan& plan, Budget& budget, const ArenaPass& pass) {
  Pass(store, plan, budget, pass).run();
}

std::exception_ptr of_weight(const std::exception_ptr& error, const ArenaWeight& weight) {
  try {
    std::rethrow_exception(error);
  } catch (const Corrupt& said) {
    return std::make_exception_ptr(Corrupt(concat("arena: ", weight.name, ": ", said.what())));
  } catch (const IoError& said) {
    return std::make_exception_ptr(IoError(concat("arena: ", weight.name, ": ", said.what()),
                                           said.error_number(), said.path(), said.offset()));
  } catch (...) {
    return error;
  }
}

}  // namespace sluiceway
