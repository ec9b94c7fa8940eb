#include "runtime/store/block_device.h"

#include <blkid/blkid.h>
#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <memory>

#include "kernels/base/check.h"

namespace sluiceway {
namespace {

// The same file again: without O_DIRECT, because libblkid reads into unaligned memory.
class Reopened {
 public:
  Reopened(int fd, const std::string& path)
      : fd_(static_cast<int>(check_syscall(
            open(concat("/proc/self/fd/", fd).c_str(), O_RDONLY | O_CLOEXEC), "open", path))) {}
  Reopened(const Reopened&) = delete;
  Reopened& operator=(const Reopened&) = delete;
  ~Reopened() { close(fd_); }
  int get() const noexcept { return fd_; }

 private:
  int fd_;
};

using Probe = std::unique_ptr<blkid_struct_probe, decltype(&blkid_free_probe)>;

std::optional<std::string> value_of(blkid_probe probe, const char* name) {
  const char* text = nullptr;
  if (blkid_probe_lookup_value(probe, name, &text, nullptr) != 0) return std::nullopt;
  return text;
}

std::string describe(blkid_probe probe) {
  if (const auto table = value_of(probe, "PTTYPE")) return *table + " partition table";
  const std::string type = value_of(probe, "TYPE").value_or("unknown");
  const std::string usage = value_of(probe, "USAGE").value_or("other");
  const std::string label = value_of(probe, "LABEL").value_or("");
  const std::string what = usage == "filesystem" ? " file system"
                           : usage == "raid"     ? " member of an array or volume group"
                           : usage == "crypto"   ? " encrypted volume"
                                                 : " area";
  return type + what + (label.empty() ? "" : " \"" + label + "\"");
}

}  // namespace

std::optional<std::string> signature_on(int fd, const std::string& path) {
  const Reopened file(fd, path);
  const Probe probe(blkid_new_probe(), &blkid_free_probe);
  if (probe == nullptr) throw OutOfMemory("signature_on: libblkid has no memory for a probe");
  errno = 0;
  if (blkid_probe_set_device(probe.get(), file.get(), 0, 0) != 0) {
    throw IoError(concat("signature_on: libblkid cannot read ", path), errno, path, 0);
  }
  blkid_probe_enable_superblocks(probe.get(), 1);
  blkid_probe_set_superblocks_flags(probe.get(),
                                    BLKID_SUBLKS_TYPE | BLKID_SUBLKS_USAGE | BLKID_SUBLKS_LABEL);
  blkid_probe_enable_partitions(probe.get(), 1);
  constexpr int kAmbivalent = -2, kNothing = 1;
  errno = 0;
  const int found = blkid_do_safeprobe(probe.get());
  if (found == kAmbivalent) return "several signatures that contradict each other";
  if (found == kNothing) return std::nullopt;
  if (found != 0) {
    throw IoError(concat("signature_on: libblkid cannot read ", path), errno, path, 0);
  }
  return describe(probe.get());
}

void check_unused(int fd, const std::string& path) {
  const std::optional<std::string> found = signature_on(fd, path);
  SLUICEWAY_CHECK(!found, "open_io: ", path, " has a ", found.value_or(""),
                  ", expected a device with nothing on it; if nobody needs what is there, remove "
                  "it with wipefs --all ",
                  path);
}

}  // namespace sluiceway
