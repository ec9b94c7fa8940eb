#include "runtime/store/posix_io.h"

#include <unistd.h>

#include <cerrno>
#include <utility>

#include "runtime/store/io_threads.h"

namespace sluiceway {
namespace {

class PosixIo final : public RawIo {
 public:
  PosixIo(DriveFile file, std::size_t depth, std::string note)
      : RawIo(properties_of(file, depth, std::move(note))),
        file_(std::move(file)),
        threads_("posix io", depth,
                 [this](const RawRequest& request) { return perform(request); }) {}

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
  IoThreads threads_;  // Last: its threads end before the file is closed.
};

}  // namespace

std::unique_ptr<RawIo> make_posix_io(DriveFile file, std::size_t depth, std::string note) {
  return std::make_unique<PosixIo>(std::move(file), depth, std::move(note));
}

}  // namespace sluiceway
