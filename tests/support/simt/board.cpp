#include "tests/support/simt/board.h"

#include <pthread.h>
#include <unistd.h>

#include <algorithm>
#include <condition_variable>
#include <mutex>
#include <utility>
#include <vector>

#include "kernels/base/check.h"
#include "tests/support/simt/gate.h"

namespace sluiceway::simt {

struct Board {
  static Board& one() {
    // Never destroyed: streams may end after every static object.
    static Board* const board = new Board;
    return *board;
  }

  static bool has_work(const Standing& stream) { return stream.finished_ < stream.enqueued_; }

  static bool can_go_on(const Standing& stream) {
    const std::optional<Obstacle>& obstacle = stream.obstacle_;
    return !obstacle || (obstacle->is_gone && obstacle->is_gone());
  }

  static std::string name(const Standing& stream) {
    return concat("stream ", stream.number_, " (last used by thread ", stream.user_, ")");
  }

  bool all_idle() const {
    return std::none_of(streams.begin(), streams.end(),
                        [](const Standing* stream) { return has_work(*stream); });
  }

  Look look() const {
    Look now;
    bool any_has_work = false, any_can_go_on = false;
    for (const Standing* const stream : streams) {
      now.finished += stream->finished_;
      if (!has_work(*stream)) continue;
      any_has_work = true;
      if (can_go_on(*stream)) {
        any_can_go_on = true;
        continue;
      }
      if (stream->obstacle_->by == Obstacle::By::kHost) now.waits_for_host = true;
      if (stream->obstacle_->by == Obstacle::By::kHold) now.waits_for_hold = true;
    }
    now.stuck = any_has_work && !any_can_go_on;
    for (const HostWait* const wait : waits) {
      const bool in_driver = wait->where_ != HostWait::Where::kForStream;
      if (in_driver && holds_device(wait->thread_id_)) now.hold_never_ends = true;
    }
    return now;
  }

  std::string describe() const {
    std::string text;
    const auto add = [&text](const std::string& who, const std::string& what) {
      text += concat(text.empty() ? "" : "; ", who, " ", what);
    };
    const auto add_threads = [&](HostWait::Where where) {
      for (const HostWait* const wait : waits) {
        if (wait->where_ == where) add("thread " + wait->thread_, wait->text_);
      }
    };
    add_threads(HostWait::Where::kWithLock);
    for (const Standing* const stream : streams) {
      if (has_work(*stream) && !can_go_on(*stream)) add(name(*stream), stream->obstacle_->text);
    }
    add_threads(HostWait::Where::kForLock);
    add_threads(HostWait::Where::kForStream);
    return text;
  }

  std::mutex mutex;
  std::condition_variable changed;
  std::vector<Standing*> streams;
  std::vector<HostWait*> waits;
};

namespace {

Board& board() { return Board::one(); }

thread_local Standing* here = nullptr;

}  // namespace

std::string this_thread_name() {
  if (gettid() == getpid()) return "main";
  char name[16] = {};
  return pthread_getname_np(pthread_self(), name, sizeof name) == 0 ? name : "without a name";
}

Standing::Standing(std::uint32_t number) : number_(number), user_(this_thread_name()) {
  const std::lock_guard lock(board().mutex);
  board().streams.push_back(this);
}

Standing::~Standing() {
  const std::lock_guard lock(board().mutex);
  std::erase(board().streams, this);
  board().changed.notify_all();
}

void Standing::enqueued() {
  std::string user = this_thread_name();
  const std::lock_guard lock(board().mutex);
  user_ = std::move(user);
  ++enqueued_;
}

void Standing::finished() {
  const std::lock_guard lock(board().mutex);
  ++finished_;
  board().changed.notify_all();
}

void Standing::work_here() { here = this; }

std::string Standing::name() const {
  const std::lock_guard lock(board().mutex);
  return Board::name(*this);
}

Blocked::Blocked(Obstacle obstacle) {
  const std::lock_guard lock(board().mutex);
  here->obstacle_ = std::move(obstacle);
}

Blocked::~Blocked() {
  const std::lock_guard lock(board().mutex);
  here->obstacle_.reset();
}

HostWait::HostWait(Where where, std::string text)
    : thread_(this_thread_name()), thread_id_(gettid()), where_(where), text_(std::move(text)) {
  const std::lock_guard lock(board().mutex);
  board().waits.push_back(this);
}

HostWait::~HostWait() {
  const std::lock_guard lock(board().mutex);
  std::erase(board().waits, this);
}

Look look() {
  const std::lock_guard lock(board().mutex);
  return board().look();
}

bool wait_until_all_are_idle_for(std::chrono::milliseconds time) {
  std::unique_lock lock(board().mutex);
  return board().changed.wait_for(lock, time, [] { return board().all_idle(); });
}

std::string describe_waits() {
  const std::lock_guard lock(board().mutex);
  return board().describe();
}

}  // namespace sluiceway::simt
