#include "runtime/store/block_device.h"

#include <blkid/blkid.h>
#include <dlfcn.h>
#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <memory>

#include "kernels/base/check.h"

namespace sluiceway {
namespace {

// Reopens a file without O_DIRECT, because libblkid reads into unaligned memory.
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

// libblkid, loaded for the first device that is checked, so that everything else works without it.
class Blkid {
 public:
  static const Blkid& get() {
    static const Blkid loaded;
    return loaded;
  }

  decltype(&blkid_new_probe) new_probe;
  decltype(&blkid_free_probe) free_probe;
  decltype(&blkid_probe_set_device) set_device;
  decltype(&blkid_probe_enable_superblocks) enable_superblocks;
  decltype(&blkid_probe_set_superblocks_flags) set_superblocks_flags;
  decltype(&blkid_probe_enable_partitions) enable_partitions;
  decltype(&blkid_do_safeprobe) do_safeprobe;
  decltype(&blkid_probe_lookup_value) lookup_value;

 private:
  Blkid() {
    find(new_probe, "blkid_new_probe");
    find(free_probe, "blkid_free_probe");
    find(set_device, "blkid_probe_set_device");
    find(enable_superblocks, "blkid_probe_enable_superblocks");
    find(set_superblocks_flags, "blkid_probe_set_superblocks_flags");
    find(enable_partitions, "blkid_probe_enable_partitions");
    find(do_safeprobe, "blkid_do_safeprobe");
    find(lookup_value, "blkid_probe_lookup_value");
  }

  template <typename F>
  void find(F& function, const char* name) {
    function = library_ == nullptr ? nullptr : reinterpret_cast<F>(dlsym(library_, name));
    if (function != nullptr) return;
    throw Unavailable(concat("signature_on: ", dlerror(),
                             "; cannot check what is on the device without ", name,
                             " of libblkid.so.1; install libblkid1, or use a file"));
  }

  void* library_ = dlopen("libblkid.so.1", RTLD_NOW | RTLD_LOCAL);  // Stays loaded.
};

using Probe = std::unique_ptr<blkid_struct_probe, decltype(&blkid_free_probe)>;

std::optional<std::string> value_of(blkid_probe probe, const char* name) {
  const char* text = nullptr;
  if (Blkid::get().lookup_value(probe, name, &text, nullptr) != 0) return std::nullopt;
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
  const Blkid& blkid = Blkid::get();
  const Probe probe(blkid.new_probe(), blkid.free_probe);
  if (probe == nullptr) throw OutOfMemory("signature_on: libblkid has no memory for a probe");
  errno = 0;
  if (blkid.set_device(probe.get(), file.get(), 0, 0) != 0) {
    throw IoError(concat("signature_on: libblkid cannot read ", path), errno, path, 0);
  }
  blkid.enable_superblocks(probe.get(), 1);
  blkid.set_superblocks_flags(probe.get(),
                              BLKID_SUBLKS_TYPE | BLKID_SUBLKS_USAGE | BLKID_SUBLKS_LABEL);
  blkid.enable_partitions(probe.get(), 1);
  constexpr int kAmbivalent = -2, kNothing = 1;
  errno = 0;
  const int found = blkid.do_safeprobe(probe.get());
  if (found == kAmbivalent) return "several signatures that contradict each other";
  if (found == kNothing) return std::nullopt;
  if (found != 0) {
    throw IoError(concat("signature_on: libblkid cannot read ", path), errno, path, 0);
  }
  return describe(probe.get());
}

void check_unused(int fd, const std::string& path) {
  const std::optional<std::string> found = signature_on(fd, path);
  SLUICEWAY_CHECK(
      !found, "open_io: ", path, " has a ", found.value_or(""),
      "; use an empty device, or, if you do not need this content, remove it with wipefs --all ",
      path);
}

}  // namespace sluiceway
