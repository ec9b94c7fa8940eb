#include "runtime/store/raw_io.h"

namespace sluiceway {

std::string_view to_string(IoKind kind) noexcept {
  return kind == IoKind::kRead ? "read" : "write";
}

}  // namespace sluiceway
