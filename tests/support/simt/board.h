// Records what every stream and every thread of the host waits for. Calls that wait for idle
// streams read it, and deadlock reports are made from it.
//
// Thread safety: every call from any thread. One mutex guards the record. It is locked while
//                Obstacle::is_gone runs, so no caller may hold a mutex that is_gone locks.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <optional>
#include <string>

namespace sluiceway::simt {

std::string this_thread_name();  // "main" for the first thread of the program.

// The condition that stops a stream.
struct Obstacle {
  enum class By : std::uint8_t { kEvent, kHost, kHold };
  By by;
  std::string text;               // "waits for ..."
  std::function<bool()> is_gone;  // Null: nobody can tell before the stream goes on.
};

// One stream.
class Standing {
 public:
  explicit Standing(std::uint32_t number);
  Standing(const Standing&) = delete;
  Standing& operator=(const Standing&) = delete;
  ~Standing();

  void enqueued();   // The calling thread gave the stream a task.
  void finished();   // The stream has finished one.
  void work_here();  // From now on the calling thread does this stream's work.
  std::string name() const;

 private:
  friend struct Board;
  friend class Blocked;

  std::uint32_t number_;
  std::string user_;  // Last thread that enqueued.
  std::uint64_t enqueued_ = 0;
  std::uint64_t finished_ = 0;
  std::optional<Obstacle> obstacle_;
};

// While one exists, the stream that works on the calling thread cannot go on.
class Blocked {
 public:
  explicit Blocked(Obstacle obstacle);
  Blocked(const Blocked&) = delete;
  Blocked& operator=(const Blocked&) = delete;
  ~Blocked();
};

// While one exists, the calling host thread waits: with the driver's lock, for it, or for a stream
// without it.
class HostWait {
 public:
  enum class Where : std::uint8_t { kWithLock, kForLock, kForStream };
  HostWait(Where where, std::string text);
  HostWait(const HostWait&) = delete;
  HostWait& operator=(const HostWait&) = delete;
  ~HostWait();

 private:
  std::string thread_;
  int thread_id_;
  Where where_;
  std::string text_;
  friend struct Board;
};

// The state of all streams at one moment.
struct Look {
  bool stuck = false;            // Some streams have work, and none of them can go on.
  bool waits_for_host = false;   // One of them waits for a word or a host function.
  bool waits_for_hold = false;   // One of them waits for the test that holds the device.
  bool hold_never_ends = false;  // A thread that holds the device waits in the driver.
  std::uint64_t finished = 0;    // Tasks that streams have done so far.
};
Look look();

// Returns false if a stream still has work after that time.
bool wait_until_all_are_idle_for(std::chrono::milliseconds time);

// "stream 1 (last used by thread sw-h2d) waits for ...; thread main waits for ...".
std::string describe_waits();

}  // namespace sluiceway::simt
