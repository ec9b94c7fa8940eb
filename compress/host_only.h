// What this room does on the host device alone says so in one way.
#pragma once

#include <string_view>

#include "kernels/base/check.h"
#include "kernels/base/stream_ref.h"

namespace sluiceway {

// Unavailable unless `stream` is the host's; `why` says what there is no device half of.
inline void require_host_stream(StreamRef stream, std::string_view what, std::string_view why) {
  if (stream.is_host()) return;
  throw Unavailable(concat(what, ": stream of ", to_string(stream.device()),
                           ", expected the host device: ", why, " in this version"));
}

}  // namespace sluiceway
