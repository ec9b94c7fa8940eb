// Vector clocks: which operations of the streams are known to have finished before which.
//
// A kernel, copy or fill is an operation. Each stream numbers its own. A clock holds, for every
// stream, the last operation that was waited for. Events and waits of the host pass clocks on.
//
// Thread safety: every free function from any thread, a Clock from one at a time.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

namespace sluiceway::simt {

class Clock {
 public:
  void merge(const Clock& other);
  void advance(std::uint32_t stream, std::uint32_t number);
  std::uint32_t at(std::uint32_t stream) const noexcept {
    return stream < numbers_.size() ? numbers_[stream] : 0;
  }

 private:
  std::vector<std::uint32_t> numbers_;
};

// The clock of the host as a whole: everything that it has waited for. Snapshots are shared.
std::shared_ptr<const Clock> host_clock();
void host_has_waited(const Clock& clock);

// Streams are numbered from 0; a returned number is used again.
std::uint32_t take_stream_number();
void give_back_stream_number(std::uint32_t number);

struct Operation {
  std::uint32_t stream = 0;
  std::uint32_t number = 0;  // Number in its stream, from 1.
  std::string name;
};
inline constexpr std::uint32_t kFirstOperation = 2;
std::uint32_t new_operation(std::uint32_t stream, std::string name);
Operation operation(std::uint32_t id);

// A running operation.
class Running {
 public:
  Running(std::uint32_t id, const Clock& clock) noexcept : id_(id), clock_(&clock) {}
  std::uint32_t id() const noexcept { return id_; }
  bool comes_after(std::uint32_t other) noexcept;

 private:
  std::uint32_t id_;
  const Clock* clock_;
  // Earlier results, by the last bits of the other operation.
  std::uint32_t before_[64] = {};
  std::uint32_t beside_[64] = {};
};

}  // namespace sluiceway::simt
