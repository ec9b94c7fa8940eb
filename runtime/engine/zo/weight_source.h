// A source of weights that take a while to read: the base of a run, in a store on disk, or masters
// from which images are made (host_masters.h).
//
// Lifetime: the bytes of a request, and the source, live until `done` is called.
#pragma once

#include <cstddef>
#include <cstdint>
#include <exception>
#include <functional>
#include <span>

namespace sluiceway {

class WeightSource {
 public:
  using Done = std::function<void(std::exception_ptr)>;
  virtual ~WeightSource() = default;
  // Returns the bytes that read() fills for a weight: its size, rounded up to whole blocks.
  virtual std::uint64_t read_bytes(std::size_t weight) const = 0;
  virtual bool is_disk() const { return true; }  // Whether its reads count as disk reads.
  // Asynchronous; `done` may run on any thread, and must not throw or wait.
  virtual void read(std::size_t weight, std::span<std::byte> into, Done done) = 0;
};

}  // namespace sluiceway
