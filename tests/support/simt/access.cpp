// Loads, stores and atomics of a Grid's threads: whether the bytes exist, and who used them.
#include "kernels/base/check.h"
#include "tests/support/simt/grid.h"
#include "tests/support/simt/names.h"
#include "tests/support/simt/symbols.h"

namespace sluiceway::simt {
namespace {

std::string what(Touch touch, std::size_t bytes) {
  const char* const verb = touch == Touch::kRead    ? "reads "
                           : touch == Touch::kWrite ? "writes "
                                                    : "updates atomically ";
  return concat(verb, bytes, bytes == 1 ? " byte" : " bytes");
}

}  // namespace

void Grid::access(const void* address, std::size_t bytes, Touch touch, bool aligned,
                  const void* from) {
  if (fiber_->owns(address)) return;
  Marks* marks = nullptr;
  Space space = Space::kDevice;
  if (arena_.contains(address)) {
    marks = arena_.marks(address);
  } else if ((marks = workshop_.marks(address)) != nullptr) {
    space = Space::kShared;
    check_static(address, bytes, touch, from);
    check_dynamic(address, bytes, touch, from);
  } else {
    return check_foreign(address, bytes, touch, from);
  }
  if (aligned && reinterpret_cast<std::uintptr_t>(address) % bytes != 0) {
    fail(cudaErrorMisalignedAddress, concat(what(touch, bytes), " at ", address,
                                            ", expected a multiple of ", bytes, line_hint(from)));
  }
  Marks before;  // Neighbouring bytes mostly have the same record, and then change alike.
  for (std::size_t i = 0; i < bytes; ++i) {
    if (i != 0 && marks[i] == before) {
      marks[i] = marks[i - 1];
      continue;
    }
    before = marks[i];
    const Verdict verdict = witness_.touch(marks[i], space, touch, thread_);
    if (verdict != Verdict::kFine) {
      refuse(verdict, static_cast<const std::byte*>(address) + i, space, bytes, touch, from);
    }
  }
}

void Grid::check_static(const void* address, std::size_t bytes, Touch touch, const void* from) {
  const std::size_t offset = workshop_.static_offset(address);
  if (offset == Workshop::kElsewhere) return;
  const std::string outside = outside_of_shared(offset, bytes);
  if (outside.empty()) return;
  fail(cudaErrorIllegalAddress,
       concat(what(touch, bytes), " of shared memory, ", outside, line_hint(from)));
}

void Grid::check_dynamic(const void* address, std::size_t bytes, Touch touch, const void* from) {
  const std::size_t rest = workshop_.dynamic_bytes_from(address);
  if (rest == 0) return;
  const std::size_t end = 2 * Workshop::kSharedBytes - rest + bytes;
  if (end <= launch_.shared_bytes) return;
  fail(cudaErrorIllegalAddress,
       concat(what(touch, bytes), ", of which the last is number ", end, " of ",
              launch_.shared_bytes, " bytes of dynamic shared memory", line_hint(from)));
}

// Neither device nor shared memory: parameters and constants may be read.
void Grid::check_foreign(const void* address, std::size_t bytes, Touch touch, const void* from) {
  const auto* const params = static_cast<const std::byte*>(launch_.kernel.params.get());
  const auto* const byte = static_cast<const std::byte*>(address);
  const bool in_params = byte >= params && byte + bytes <= params + launch_.kernel.params_bytes;
  if (touch == Touch::kRead && (in_params || in_constants(address, bytes))) return;
  for (unsigned other = 0; other < threads_per_block_; ++other) {
    if (!workshop_.fiber(other).owns(address)) continue;
    fail(cudaErrorIllegalAddress,
         concat(what(touch, bytes), " of a local variable of ", name(other), line_hint(from)));
  }
  if (Arena* const other = Arena::holding(address); other != nullptr) {
    fail(cudaErrorIllegalAddress,
         concat(what(touch, bytes), " of CUDA device ", other->device(), ", ",
                other->describe(address), ", expected memory of device ", launch_.device,
                line_hint(from)));
  }
  fail(cudaErrorIllegalAddress, concat(what(touch, bytes), " of the host's memory at ", address,
                                       ", expected device memory; copy it there", line_hint(from)));
}

std::string Grid::other_party(Mark mark) const {
  if (!witness_.of_this_launch(mark)) {
    const Operation other = operation(mark.operation);
    return concat(other.name, " on another stream; wait for an event after it");
  }
  const std::size_t block = witness_.block_of(mark);
  const uint3 index = unflatten(block_order_[block], launch_.grid);
  const bool here = index.x == block_.x && index.y == block_.y && index.z == block_.z;
  std::string text = mark.by == By::kThread || here ? name(mark.thread) : "threads";
  if (!here) {
    text += concat(" of block ", to_text(index),
                   "; blocks need a __threadfence and an atomic in between");
  } else {
    text += "; it needs a barrier in between";
  }
  return text;
}

void Grid::refuse(Verdict verdict, const void* byte, Space space, std::size_t bytes, Touch touch,
                  const void* from) {
  const std::string place =
      space == Space::kShared ? concat("shared memory at ", byte) : arena_.describe(byte);
  std::string text = concat(what(touch, bytes), ", among them ", place);
  switch (verdict) {
    case Verdict::kFine:
    case Verdict::kNoMemory:
      break;
    case Verdict::kUnwritten:
      text += space == Space::kShared ? ", which this block has not written"
                                      : ", which nobody has written";
      break;
    case Verdict::kWrittenBy:
      text += concat(", which was written by ", other_party(witness_.other()));
      break;
    case Verdict::kReadBy:
      text += concat(", which was read by ", other_party(witness_.other()));
      break;
  }
  fail(verdict == Verdict::kNoMemory ? cudaErrorIllegalAddress : cudaErrorLaunchFailure,
       text + line_hint(from));
}

}  // namespace sluiceway::simt
