#include "experiments/bench/fio_round.h"

#include <algorithm>
#include <array>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <string>

#include "kernels/base/check.h"

namespace sluiceway::bench {

bool has_fio() { return std::system("command -v fio >/dev/null 2>&1") == 0; }

double seconds_of_fio(const Round& round, bool huge) {
  const std::string said = round.path + ".fio";
  const std::string command = concat(
      "fio --name=round --rw=rw --direct=1 --ioengine=io_uring --fixedbufs --registerfiles "
      "--thread",
      " --output-format=json --output=", said, " --filename=", round.path,
      " --bs=", round.block_bytes, " --iodepth=", round.depth,
      " --size=", round.blocks * round.block_bytes,
      " --io_size=", round.requests * round.block_bytes, huge ? " --mem=mmaphuge" : "",
      " >/dev/null 2>&1");
  const int status = std::system(command.c_str());
  std::ifstream file(said);
  const auto answer = nlohmann::json::parse(file, nullptr, false);
  std::filesystem::remove(said);
  if (status != 0 || answer.is_discarded()) throw Unavailable(concat("fio failed: ", command));
  const auto& job = answer["jobs"][0];
  const auto of = [&](const char* key) { return std::array{job["read"][key], job["write"][key]}; };
  const auto [bytes_read, bytes_written] = of("io_bytes");
  SLUICEWAY_CHECK(bytes_read.get<std::uint64_t>() + bytes_written.get<std::uint64_t>() ==
                      round.requests * round.block_bytes,
                  "fio moved ", bytes_read.dump(), " + ", bytes_written.dump(), " bytes, expected ",
                  round.requests * round.block_bytes);
  const auto [reading, writing] = of("runtime");
  return 1e-3 * std::max(reading.get<double>(), writing.get<double>());
}

}  // namespace sluiceway::bench
