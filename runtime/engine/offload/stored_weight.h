// The layout and the format of a streamed weight in the store.
//
// A weight is stored chunk by chunk, each in whole blocks. All chunks but the last have as many
// elements, so chunk k begins at byte k chunk_bytes() when all are read in order. Each is in the
// type of the model, or an fp8 image of its own (fp8_image.h), which is half as large as bf16. Only
// a frozen weight is an fp8 image: it is rounded once, when the store is made. 4 bits an element
// are reserved for another form of a frozen weight.
//
// Lifetime:      a value.
// Thread safety: immutable.
// Errors:        none; sizes are those of the weight.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "kernels/base/dtype.h"
#include "kernels/base/stream_ref.h"
#include "kernels/weight_form.h"

namespace sluiceway {

class StoredWeight {
 public:
  StoredWeight(WeightForm form, DType dtype, std::int64_t elems, std::int64_t chunk_elems);

  // Returns the bytes of a chunk with so many elements: whole blocks.
  static std::uint64_t chunk_bytes(WeightForm form, std::int64_t elems) noexcept;

  // Whether unpack() makes the elements; otherwise they are stored as the model has them.
  bool is_packed() const noexcept { return form_.is_fp8_image(); }
  std::uint64_t bytes() const noexcept;        // Of all chunks.
  std::uint64_t chunk_bytes() const noexcept;  // Of each chunk but the last.
  // Returns the bytes of as many whole chunks as fit into `most`, at least one, at most all.
  std::uint64_t part_bytes(std::uint64_t most) const noexcept;

  // Makes the elements of the chunks that fill `part`, which begins at byte `first` of all, in the
  // model's type, in their places in `weight`. A value that the type does not have is rounded to
  // nearest; f32 and bf16 have all of them. For a packed weight; enqueued on `stream`, on whose
  // device both are.
  void unpack(std::uint64_t first, std::span<const std::byte> part, std::span<std::byte> weight,
              StreamRef stream) const;

 private:
  WeightForm form_;
  DType dtype_;
  std::int64_t elems_;
  std::int64_t each_;  // Elements of each chunk but the last.
};

}  // namespace sluiceway
