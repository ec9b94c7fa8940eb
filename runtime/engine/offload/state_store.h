// The chunk store of a model: makes one for its tensors, or opens one and compares it with them.
//
// The catalogue says whose states the store holds (store_catalogue.h): elements per chunk, the
// codec of the states unless they are f32, and name, shape and dtype of every tensor in the order
// of the engine.
//
// Errors: InvalidArgument: the store holds other tensors, chunks, codec or gradients; the text
// names
//         the first difference. Also the errors of open_or_create().
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "kernels/base/dtype.h"
#include "runtime/engine/offload/chunk_plan.h"
#include "runtime/engine/offload/state_stream.h"
#include "runtime/engine/offload/stored_weight.h"
#include "runtime/store/chunk_store.h"
#include "runtime/store/store_options.h"

namespace sluiceway {

// A parameter of the model.
struct TensorSpec {
  std::string name;
  std::vector<std::int64_t> shape;
  DType dtype = DType::kF32;  // The model's type; the master is f32.
  bool compressed = false;    // Its gradient crosses as a core; only for matrices.
  bool streamed = false;      // Its weight is in the store, for a forward to read.
  bool resident = false;      // Nevertheless it also stays on the device.
  bool frozen = false;        // It is streamed, has no states, and gets no gradient.
  bool fp8 = false;           // It is frozen, and stored as fp8 images (stored_weight.h).

  bool is_away() const noexcept { return streamed && !resident; }
  Streamed how_streamed() const noexcept {
    if (!streamed) return Streamed::kNo;
    if (!frozen) return Streamed::kTrained;
    return fp8 ? Streamed::kFrozenFp8 : Streamed::kFrozen;
  }

  std::int64_t elems() const noexcept;
  // Returns how a streamed weight lies in a store with chunks of so many elements.
  StoredWeight stored_weight(std::int64_t chunk_elems) const;
  std::int64_t rows() const noexcept { return shape.size() == 2 ? shape[0] : 1; }
  std::int64_t cols() const noexcept { return shape.size() == 2 ? shape[1] : elems(); }
};

struct OpenedStore {
  std::unique_ptr<ChunkStore> store;
  bool is_new = false;  // It holds no states yet.
};

// `memory` is offered to io_uring and outlives the store. `contents`: of a new store
// (state_contents()), to which this adds the catalogue.
OpenedStore open_state_store(Budget& budget, const StoreOptions& options,
                             std::span<const TensorSpec> tensors, const ChunkPlan& plan,
                             const StateStream::Types& types, Contents contents,
                             std::span<std::byte> memory);

}  // namespace sluiceway
