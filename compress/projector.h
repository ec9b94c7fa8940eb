// One weight's projectors P (m x dm) and Q (n x dn) in the storage that the kernels read.
//
//   sparse  index and value by row for P and Q, and Q by column as well    (m + n) r 8 bytes, and
//                                                                          n r 8 + (dn + 1) 4
//   blocks  one value for each row and kept column                         (m + n) kept 4 bytes
//
// keep() copies P and Q into the caller's memory, so that new ones can be drawn in place; kept()
// views that copy as kernels read it, restore() copies it back.
//
// The host draws P and Q, so their bits are the same on every device. On a CUDA device it draws
// into a projector in host memory, which lives only during the call; look_at() and edit() also use
// such a copy for everything else that the host reads or writes.
//
// Ownership: owns its arrays; their bytes are reserved once on the device tier, for a projector in
//            host memory on the host tier.
// Errors:    OutOfMemory, with byte counts; nothing was changed.
#pragma once

#include <cstdint>
#include <span>

#include "compress/gradient_codec.h"
#include "compress/random_draw.h"
#include "kernels/base/view.h"
#include "runtime/memory/buffer.h"

namespace sluiceway {

struct ProjectorDims {
  std::int64_t m = 0, n = 0;    // Weight shape.
  std::int64_t dm = 0, dn = 0;  // Core shape.
};

// The shape m x n with its core under `config`: d x d, or round(ratio m) x round(ratio n).
ProjectorDims sparse_dims(const CodecConfig& config, std::int64_t m, std::int64_t n);

// The memory of a projector's arrays. The budget outlives the projector.
class ProjectorHome {
 public:
  ProjectorHome(DeviceId device, Budget& budget) noexcept : device_(device), budget_(&budget) {}

  ProjectorHome in_host_memory() const noexcept;  // For the same device's weights.
  bool is_host() const noexcept { return tier_ == Tier::kHost || device_.is_host(); }
  Budget& budget() const noexcept { return *budget_; }

  Buffer array(std::int64_t elems, std::size_t elem_bytes, Fill fill = Fill::kNone) const;
  // Returns a copy in host memory; empty if `x` is there already.
  Buffer bring(std::span<const float> x) const;
  // Copies between this home's memory and any other; returns when the copy is done.
  void copy(void* dst, const void* src, std::size_t bytes) const;
  void fill_zero(std::span<float> x) const;

 private:
  Tier tier_ = Tier::kDevice;
  DeviceId device_;
  Budget* budget_;
};

class SparseProjector {
 public:
  // Draws random positions and signs; at most nnz a row, fewer if the core is narrower than that.
  SparseProjector(const ProjectorDims& dims, std::int64_t nnz, const DrawKey& key, DeviceId device,
                  Budget& budget);

  const ProjectorDims& dims() const noexcept { return dims_; }
  const ProjectorHome& home() const noexcept { return home_; }
  SparseProjector on_host() const;              // A copy in host memory.
  void assign(const SparseProjector& on_host);  // The shapes must be equal.
  SparseRows p() const noexcept { return p_.rows(); }
  SparseRows q() const noexcept { return q_.rows(); }
  SparseColumns q_columns() const noexcept { return columns_; }

  // Lets the host or a kernel write the values; call values_changed() afterwards, which updates the
  // columns.
  std::span<float> p_value() noexcept { return p_.value.as<float>(); }
  std::span<float> q_value() noexcept { return q_.value.as<float>(); }
  void values_changed();

  void draw(const DrawKey& key, SparseInit init);  // New positions and values, in place.

  struct Pair {
    SparseRows p, q;
  };
  void keep(std::span<float> copy) const;  // Size: kept_elems().
  Pair kept(std::span<const float> copy) const noexcept;
  void restore(std::span<const float> copy);

  static std::uint64_t bytes(const ProjectorDims& dims, std::int64_t nnz) noexcept;
  static std::size_t kept_elems(const ProjectorDims& dims, std::int64_t nnz) noexcept;
  // The scratch of all kernels that take such a pair and a whole gradient; of the kernel that makes
  // a range of it; of the kernel that projects rows.
  static std::size_t scratch_elems(const ProjectorDims& dims, std::int64_t nnz) noexcept;
  static std::size_t range_scratch_elems(const ProjectorDims& dims, std::int64_t nnz) noexcept;
  static std::size_t project_scratch_elems(const ProjectorDims& dims, std::int64_t nnz) noexcept;

 private:
  struct Half {
    Half(std::int64_t rows, std::int64_t cols, std::int64_t nnz, const ProjectorHome& home);
    void draw(const DrawKey& key, DrawPurpose purpose, SparseInit init);
    void assign(const Half& from, const ProjectorHome& home);
    SparseRows rows() const noexcept;

    std::int64_t row_count, cols, nnz;
    Buffer index, value;
  };

  SparseProjector(const ProjectorDims& dims, std::int64_t nnz, const ProjectorHome& home);

  ProjectorDims dims_;
  std::int64_t nnz_;
  ProjectorHome home_;
  Half p_, q_;
  Buffer column_offset_, column_row_, column_value_;
  SparseColumns columns_;
};

// The shapes of P and Q of a block family; their `value` is null.
struct BlockLayouts {
  BlockRows p, q;

  std::size_t elems() const noexcept {
    return static_cast<std::size_t>(p.rows * p.kept + q.rows * q.kept);
  }
  std::uint64_t bytes() const noexcept { return sizeof(float) * std::uint64_t{elems()}; }
  std::size_t scratch_elems() const noexcept;  // As in SparseProjector.
  std::size_t range_scratch_elems() const noexcept;
  std::size_t project_scratch_elems() const noexcept;
};

// Rows in contiguous groups of `block`; each group keeps round(ratio * its rows) columns, at least
// one. A weight with fewer rows than a block is one group.
BlockRows block_layout(std::int64_t rows, std::int64_t block, double ratio) noexcept;

class BlockProjector {
 public:
  BlockProjector(const BlockLayouts& layouts, DeviceId device, Budget& budget);  // All zeros.

  const ProjectorDims& dims() const noexcept { return dims_; }
  const ProjectorHome& home() const noexcept { return home_; }
  BlockProjector on_host() const;              // A copy in host memory.
  void assign(const BlockProjector& on_host);  // The shapes must be equal.
  BlockRows p() const noexcept { return p_.view; }
  BlockRows q() const noexcept { return q_.view; }
  // Lets the host or a kernel write the values.
  std::span<float> p_value() noexcept { return p_.value.as<float>(); }
  std::span<float> q_value() noexcept { return q_.value.as<float>(); }

  // Draws random orthonormal columns in every group.
  void draw(const DrawKey& key);

  void keep(std::span<float> copy) const;  // Size: BlockLayouts::elems().
  BlockLayouts kept(std::span<const float> copy) const noexcept;
  void restore(std::span<const float> copy);  // Zeros if `copy` is empty.

 private:
  struct Half {
    Half(const BlockRows& layout, const ProjectorHome& home);
    void draw(const DrawKey& key, DrawPurpose purpose);
    Buffer value;
    BlockRows view;
  };

  BlockProjector(const BlockLayouts& layouts, const ProjectorHome& home);

  ProjectorDims dims_;
  ProjectorHome home_;
  Half p_, q_;
};

// Calls `look` with the projector, or with a copy if the host cannot read it.
template <class Projector, class Look>
auto look_at(const Projector& projector, const Look& look) {
  if (projector.home().is_host()) return look(projector);
  const Projector here = projector.on_host();
  return look(here);
}

// Lets `change` write P and Q. On a CUDA device nothing may read them meanwhile. If it throws, they
// are unchanged.
template <class Projector, class Change>
void edit(Projector& projector, const Change& change) {
  if (projector.home().is_host()) return change(projector);
  Projector here = projector.on_host();
  change(here);
  projector.assign(here);
}

}  // namespace sluiceway
