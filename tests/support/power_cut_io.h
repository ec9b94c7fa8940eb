// A drive with a volatile cache whose power can be cut, over and over.
//
// Writes reach the medium only through flush(). At a cut, each write since the last flush is lost,
// kept, or torn: some of its sectors of 512 bytes are kept. Kept sectors are applied in order of
// completion, so a sector that was written twice ends as any of its versions. The medium outlives
// the drive: open another drive on it.
//
//   auto medium = std::make_shared<Medium>(1 << 20);
//   { Drive drive(std::make_unique<PowerCutIo>(medium, Options{.dies_at = 7})); ... }  // EIO from
//   7 Drive again(std::make_unique<PowerCutIo>(medium, Options{}));                      // After
//   it.
//
// Thread safety: every call from any thread.
#pragma once

#include <cstdint>
#include <memory>
#include <mutex>
#include <vector>

#include "runtime/store/io_threads.h"
#include "runtime/store/raw_io.h"
#include "tests/support/rng.h"

namespace sluiceway::test {

class PowerCutIo final : public RawIo {
 public:
  using Medium = std::vector<std::byte>;

  struct Options {
    std::uint64_t seed = 1;
    // The write or flush, counted from 1, during which power fails: it and all later requests fail
    // with EIO, and part of it may have happened. 0: when cut() is called.
    std::uint64_t dies_at = 0;
    std::uint64_t lies_at = 0;  // The flush, counted from 1, that returns 0 but does nothing.
  };

  PowerCutIo(std::shared_ptr<Medium> medium, Options options);
  ~PowerCutIo() override;  // Cuts, unless there was a cut: nobody flushed volatile data.

  void cut();
  std::uint64_t operations() const;  // Writes and flushes so far.

  void submit(const RawRequest& request, Done done) override;
  int flush() noexcept override;
  int grow(std::uint64_t size_bytes) noexcept override;
  std::uint64_t size_bytes() const noexcept override;

 private:
  struct Write {
    std::uint64_t offset = 0;
    std::vector<std::byte> bytes;
  };
  using Lock = std::lock_guard<std::mutex>;

  RawResult perform(const RawRequest& request);
  void operate(const Lock& lock);  // Counts, and cuts when it is time.
  void cut(const Lock&);

  const Options options_;
  mutable std::mutex mutex_;
  std::shared_ptr<Medium> medium_;
  Medium seen_;  // Contents that reads return: the medium and every write.
  std::vector<Write> unflushed_;
  Rng rng_;
  std::uint64_t operations_ = 0;
  std::uint64_t flushes_ = 0;
  bool dead_ = false;
  std::unique_ptr<IoThreads> threads_;
};

}  // namespace sluiceway::test
