// A source of weights that take a while to read: the base of a run, in a store on disk, or masters
// from which images are made (master_images.h).
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
  // Bytes that read() fills for weight w: its own, rounded up to whole blocks of the medium.
  virtual std::uint64_t read_bytes(std::size_t weight) const = 0;
  virtual bool is_disk() const { return true; }  // Whether what is read counts as read from one.
  // Asynchronous; `done` may run on any thread, must not throw or wait.
  virtual void read(std::size_t weight, std::span<std::byte> into, Done done) = 0;
};

}  // namespace sluiceway
