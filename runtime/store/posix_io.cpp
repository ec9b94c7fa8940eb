#include "runtime/store/posix_io.h"

#include <unistd.h>

#include <cerrno>
#include <memory>
#include <utility>

#include "runtime/device/wire.h"
#include "runtime/store/io_threads.h"

namespace sluiceway {
namespace {

class PosixIo final : public RawIo {
 public:
  PosixIo(DriveFile file, std::size_t depth, std::string note, double rate_gbps)
      : RawIo(properties_of(file, depth, std::move(note))),
        file_(std::move(file)),
        wire_(rate_gbps > 0 ? std::make_unique<Wire>(rate_gbps, 0.0) : nullptr),
        threads_("posix io", depth,
                 [this](const RawRequest& request) { return perform_paced(request); }) {}

  void submit(const RawRequest& request, Done done) override {
    threads_.submit(request, std::move(done));
  }
  int flush() noexcept override { return file_.flush(); }
  int grow(std::uint64_t size_bytes) noexcept override { return file_.grow(size_bytes); }
  std::uint64_t size_bytes() const noexcept override { return file_.size_bytes(); }

 private:
  static Properties properties_of(const DriveFile& file, std::size_t depth, std::string note) {
    Properties properties = file.properties();
    properties.backend = "posix";
    properties.depth = depth;
    properties.note = std::move(note);
    return properties;
  }

  RawResult perform_paced(const RawRequest& request) const noexcept {
    if (wire_ == nullptr) return perform(request);
    const WireSchedule::Slot slot = wire_->take(request.bytes.size());
    const RawResult result = perform(request);
    if (Wire::sleep_until_due(slot)) wire_->woke(slot);
    return result;
  }

  RawResult perform(const RawRequest& request) const noexcept {
    const auto offset = static_cast<off_t>(request.offset);
    void* const data = request.bytes.data();
    const ssize_t moved = request.kind == IoKind::kRead
                              ? pread(file_.fd(), data, request.bytes.size(), offset)
                              : pwrite(file_.fd(), data, request.bytes.size(), offset);
    if (moved < 0) return {errno, 0};
    return {0, static_cast<std::size_t>(moved)};
  }

  DriveFile file_;
  std::unique_ptr<Wire> wire_;  // Null: not paced.
  IoThreads threads_;           // Last: its threads end before the file is closed.
};

}  // namespace

std::unique_ptr<RawIo> make_posix_io(DriveFile file, std::size_t depth, std::string note,
                                     double rate_gbps) {
  return std::make_unique<PosixIo>(std::move(file), depth, std::move(note), rate_gbps);
}

}  // namespace sluiceway
