#include "runtime/store/drive_rate.h"

#include <condition_variable>
#include <ctime>
#include <exception>
#include <mutex>

#include "kernels/base/check.h"

namespace sluiceway {
namespace {

constexpr std::chrono::milliseconds kBetweenChecks{100};

class Measurement {
 public:
  Measurement(Drive& drive, const RateOptions& options) : drive_(drive), options_(options) {}

  // Starts requests at all places; returns once the last has ended.
  std::uint64_t run() {
    for (std::size_t place = 0; place < options_.depth; ++place) next(place, nullptr);
    std::unique_lock lock(mutex_);
    while (in_flight_ > 0) {
      ended_.wait_for(lock, kBetweenChecks);
      if (!options_.check || error_) continue;
      lock.unlock();
      std::exception_ptr raised;
      try {
        options_.check();
      } catch (...) {
        raised = std::current_exception();
      }
      lock.lock();
      if (raised) error_ = raised;
    }
    if (error_) std::rethrow_exception(error_);
    return requests_;
  }

 private:
  using Clock = std::chrono::steady_clock;

  // Starts the next request of a place; `error` is that of its previous request.
  void next(std::size_t place, const IoError* error) {
    std::uint64_t request = 0;
    {
      const std::lock_guard lock(mutex_);
      if (error != nullptr && !error_) error_ = std::make_exception_ptr(*error);
      const std::chrono::duration<double> spent = Clock::now() - began_;
      if (error_ || requests_ == options_.most_requests || spent >= options_.longest) return;
      request = requests_++;
      ++in_flight_;
    }
    try {
      submit(place, request);
    } catch (...) {
      end(std::current_exception());
    }
  }

  void submit(std::size_t place, std::uint64_t request) {
    const std::uint64_t offset = request % options_.blocks * options_.block_bytes;
    const auto bytes = options_.memory.subspan(place * options_.block_bytes, options_.block_bytes);
    const auto then = [this, place](const IoError* error) {
      next(place, error);
      end(nullptr);
    };
    const bool reads = options_.mix == Mix::kBoth ? request % 2 == 0 : options_.mix == Mix::kRead;
    if (reads) {
      drive_.read(offset, bytes, "block", then);
    } else {
      drive_.write(offset, bytes, "block", then);
    }
  }

  // The last request touches nothing of this object after it releases the lock.
  void end(const std::exception_ptr& error) {
    const std::lock_guard lock(mutex_);
    if (error && !error_) error_ = error;
    if (--in_flight_ == 0) ended_.notify_one();
  }

  Drive& drive_;
  const RateOptions& options_;
  const Clock::time_point began_ = Clock::now();
  std::mutex mutex_;
  std::condition_variable ended_;
  std::uint64_t requests_ = 0;
  std::uint64_t in_flight_ = 0;
  std::exception_ptr error_;
};

}  // namespace

Mix parse_mix(std::string_view name) {
  if (name == "read") return Mix::kRead;
  if (name == "write") return Mix::kWrite;
  if (name == "both") return Mix::kBoth;
  throw_invalid_argument(concat("parse_mix: mix is \"", name, "\", expected read, write or both"));
}

DriveRate measure_rate(Drive& drive, const RateOptions& options) {
  SLUICEWAY_CHECK(options.depth > 0 && options.blocks > 0 && options.block_bytes > 0,
                  "measure_rate: depth ", options.depth, ", ", options.blocks, " blocks of ",
                  options.block_bytes, " bytes, expected 1 or more of each");
  SLUICEWAY_CHECK(options.memory.size() >= options.depth * options.block_bytes,
                  "measure_rate: ", options.memory.size(), " bytes of memory, expected ",
                  options.depth * options.block_bytes);
  const auto began = std::chrono::steady_clock::now();
  const std::clock_t processor = std::clock();
  DriveRate rate;
  rate.requests = Measurement(drive, options).run();
  if (options.flush && options.mix != Mix::kRead) drive.flush();
  const std::chrono::duration<double> spent = std::chrono::steady_clock::now() - began;
  rate.bytes = rate.requests * options.block_bytes;
  rate.seconds = spent.count();
  rate.processor_seconds = static_cast<double>(std::clock() - processor) / CLOCKS_PER_SEC;
  return rate;
}

}  // namespace sluiceway
