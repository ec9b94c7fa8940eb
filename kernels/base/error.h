// The exceptions that the whole runtime throws; each arrives in Python under the same name.
//
// Text: "function: what is wrong (value found, value expected)", then what to do. Numbers have
// units.
#pragma once

#include <cstdint>
#include <stdexcept>
#include <string>

namespace sluiceway {

class Error : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

class InvalidArgument : public Error {  // A bad value, shape or state; nothing was changed.
 public:
  using Error::Error;
};

// A budget or the system refused; the text has both byte counts.
class OutOfMemory : public Error {
 public:
  using Error::Error;
};

class Timeout : public Error {
 public:
  using Error::Error;
};

class Corrupt : public Error {  // Stored bytes do not match their checksum or grammar.
 public:
  using Error::Error;
};

class Unavailable : public Error {  // This build or machine does not support it.
 public:
  using Error::Error;
};

class CudaError : public Error {
 public:
  using Error::Error;
};

class IoError : public Error {
 public:
  IoError(const std::string& what, int error_number, std::string path, std::int64_t offset)
      : Error(what), errno_(error_number), path_(std::move(path)), offset_(offset) {}
  int error_number() const noexcept { return errno_; }
  const std::string& path() const noexcept { return path_; }
  std::int64_t offset() const noexcept { return offset_; }

 private:
  int errno_;
  std::string path_;
  std::int64_t offset_;
};

}  // namespace sluiceway
