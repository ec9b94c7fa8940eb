#include "runtime/engine/zo/log_reader.h"

#include <limits>

#include "kernels/base/check.h"

namespace sluiceway {
namespace {

LogLoss loss_of(const LogHistory& history, std::uint64_t offset, std::uint64_t bytes,
                const std::string& path, const std::string& why) {
  const std::uint64_t entries = bytes / entry_bytes(history.header().shape);
  return {
      offset, bytes, entries, history.next_step(),
      concat("scalar log: ", path, " holds up to byte ", offset, ", expected ", offset + bytes,
             "; ", bytes, " bytes (", entries, " whole entries) after it are lost, and the log ",
             "goes on from step ", history.next_step(), " (", why, ")")};
}

LogHeader header_of(std::span<const std::byte> bytes, const std::string& path) {
  try {
    return decode_log_header(bytes);
  } catch (const Corrupt& error) {
    throw Corrupt(concat(path, ": ", error.what(), "; replace it with a copy of the log, or move ",
                         "it away to restart from the base"));
  }
}

}  // namespace

LogReading read_log(const LogFile& file) {
  (void)header_of(file.read(0, kLogHeaderBytes), file.path());  // Before all of what may be no log.
  return read_log(file.read(0, std::numeric_limits<std::uint64_t>::max()), file.path());
}

LogReading read_log(std::span<const std::byte> bytes, const std::string& path) {
  LogReading reading{LogHistory(header_of(bytes, path)), {}, bytes.size()};
  LogHistory& history = reading.history;
  const std::size_t size = entry_bytes(history.header().shape);
  std::size_t at = kLogHeaderBytes;
  std::string why;
  try {
    while (bytes.size() - at >= size) {
      history.apply(decode_log_entry(bytes.subspan(at, size), history.header(), history.entries()));
      at += size;
    }
    why = "the last entry is torn";
  } catch (const Corrupt& error) {
    why = error.what();
  } catch (const InvalidArgument& error) {
    why = error.what();
  }
  if (at < bytes.size()) reading.lost = loss_of(history, at, bytes.size() - at, path, why);
  return reading;
}

}  // namespace sluiceway
