// What Python and a store say to each other, shared by the files that bind who has one.
#pragma once

#include <cstdint>
#include <exception>
#include <future>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "kernels/base/check.h"
#include "python/bindings/bindings.h"
#include "python/bindings/gil.h"
#include "python/bindings/signal_check.h"
#include "runtime/store/chunk_store.h"
#include "runtime/store/store_options.h"

namespace sluiceway {

// How fast the drives of a new store are beside one another; none: alike.
using DriveWeights = std::vector<std::uint32_t>;

// "block" is a whole device, through whatever this system has; rate_gbps: open_io.h.
inline StoreOptions store_options(const std::vector<std::string>& drives, const std::string& io,
                                  double rate_gbps, const DriveWeights& weights = {}) {
  SLUICEWAY_CHECK(weights.empty() || weights.size() == drives.size(), "store: ", weights.size(),
                  " weights, expected one for each of the ", drives.size(), " drives, or none");
  SLUICEWAY_CHECK(rate_gbps == 0 || !drives.empty(), "store: rate_gbps is ", rate_gbps,
                  ", but tier is host, which has no drive to pace; leave it out, or set tier disk");
  StoreOptions store;
  store.drives = drives;
  store.weights = weights;
  store.rate_gbps = rate_gbps;
  store.whole_device = io == "block";
  store.io = parse_io_choice(store.whole_device ? "auto" : io);
  return store;
}

// Ctrl-C is heard at each call, and ends what reports here.
inline ChunkStore::Progress reporter_of(const py::object& progress) {
  return [progress, check = signal_check()](std::uint64_t done, std::uint64_t all) {
    check();
    const GilHeld locked;
    if (!progress.is_none()) progress(done, all);
  };
}

// Submits a request and waits for its end, without the GIL.
template <typename Submit>
void wait_for_end(const Submit& submit) {
  const auto ended = std::make_shared<std::promise<void>>();  // The one who ends it has it, too.
  std::future<void> end = ended->get_future();
  submit([ended](const std::exception_ptr& error) {
    error ? ended->set_exception(error) : ended->set_value();
  });
  end.get();
}

// path, backend, direct and note of each.
inline py::list drives_of(const ChunkStore& store) {
  py::list all;
  for (const auto& drive : store.drives()) {
    const RawIo::Properties& is = drive->properties();
    py::dict one;
    one["path"] = is.path;
    one["backend"] = std::string(is.backend);
    one["direct"] = is.direct;
    one["note"] = is.note;
    all.append(one);
  }
  return all;
}

}  // namespace sluiceway
