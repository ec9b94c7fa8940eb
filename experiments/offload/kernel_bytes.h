// The kernel's counts of this process: traffic with drives (/proc/self/io), and memory.
#pragma once

#include <sys/resource.h>

#include <cstdint>
#include <fstream>
#include <string>

namespace sluiceway {

struct KernelBytes {
  std::uint64_t read = 0, written = 0;  // Since the process began.
};

inline KernelBytes kernel_bytes() {
  KernelBytes found;
  std::uint64_t value = 0;
  std::ifstream file("/proc/self/io");
  for (std::string name; file >> name >> value;) {
    if (name == "read_bytes:") found.read = value;
    if (name == "write_bytes:") found.written = value;
  }
  return found;
}

// Most bytes of memory that the process has had at once.
inline std::uint64_t resident_peak() {
  rusage use{};
  getrusage(RUSAGE_SELF, &use);
  return static_cast<std::uint64_t>(use.ru_maxrss) * 1024;
}

}  // namespace sluiceway
