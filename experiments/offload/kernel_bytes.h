// The kernel's counts of this process's traffic with drives (/proc/self/io).
#pragma once

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

}  // namespace sluiceway
