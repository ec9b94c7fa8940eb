// A record in 64 bits of who last touched a byte, and the pair of these that each byte has.
//
// Within one launch, the moment counts everything that orders threads: barriers, fences, atomics,
// the start of a block. Blocks run one after another, so a moment also identifies the block.
#pragma once

#include <atomic>
#include <cstdint>

namespace sluiceway::simt {

enum class By : std::uint8_t {
  kThread = 0,  // The thread of the mark.
  kWarp = 1,    // Several of its warp. Readers only, like the next two.
  kBlock = 2,   // Several of its block.
  kGrid = 3,    // Threads of other blocks as well.
  kAtomic = 1,  // The thread of the mark, by an atomic function. Writers only.
};

struct Mark {
  static constexpr std::uint32_t kLastOperation = (1U << 24) - 1;
  static constexpr std::uint32_t kLastMoment = (1U << 28) - 1;

  std::uint32_t operation = 0;  // 0: no such memory, or nobody; 1: memory never written.
  std::uint32_t moment = 0;
  std::uint32_t thread = 0;
  By by = By::kThread;

  static constexpr std::uint32_t kNobody = 0;
  static constexpr std::uint32_t kUnwritten = 1;

  constexpr std::uint64_t pack() const noexcept {
    return std::uint64_t{operation} << 40 | std::uint64_t{moment} << 12 | thread << 2 |
           static_cast<std::uint64_t>(by);
  }
  static constexpr Mark unpack(std::uint64_t word) noexcept {
    return {static_cast<std::uint32_t>(word >> 40),
            static_cast<std::uint32_t>(word >> 12) & kLastMoment,
            static_cast<std::uint32_t>(word >> 2) & 1023U, static_cast<By>(word & 3U)};
  }
};

// Kernels of several streams may mark the same byte at once; each mark is whole.
class Marks {
 public:
  Mark written() const noexcept { return load(written_); }
  Mark read() const noexcept { return load(read_); }
  void set_written(Mark mark) noexcept { store(written_, mark); }
  void set_read(Mark mark) noexcept { store(read_, mark); }
  friend bool operator==(const Marks&, const Marks&) = default;

 private:
  static Mark load(const std::uint64_t& word) noexcept {
    return Mark::unpack(__atomic_load_n(&word, __ATOMIC_RELAXED));
  }
  static void store(std::uint64_t& word, Mark mark) noexcept {
    __atomic_store_n(&word, mark.pack(), __ATOMIC_RELAXED);
  }
  std::uint64_t written_ = 0;
  std::uint64_t read_ = 0;
};

}  // namespace sluiceway::simt
