// One weight's projectors P (m x dm) and Q (n x dn) in the storage that the kernels read.
//
//   sparse  index and value by row for P and Q, and Q by column as well    (m + n) r 8 bytes, and
//                                                                          n r 8 + (dn + 1) 4
//   blocks  one value for each row and kept column                         (m + n) kept 4 bytes
//
// `row_offset` is the row of the whole weight that row 0 of this P stands for: a shard draws what
// the whole weight would have there.
//
// Ownership: owns its arrays; their bytes are reserved on the device tier.
// Errors:    OutOfMemory, with byte counts; nothing was changed.
#pragma once

#include <cstdint>
#include <span>

#include "compress/random_draw.h"
#include "kernels/base/view.h"
#include "runtime/memory/buffer.h"

namespace sluiceway {

struct ProjectorDims {
  std::int64_t m = 0, n = 0;    // Of the weight.
  std::int64_t dm = 0, dn = 0;  // Of the core.
  std::int64_t row_offset = 0;
};

class SparseProjector {
 public:
  // Random positions and values of generation key.generation; at most nnz a row, fewer where the
  // core is narrower than that.
  SparseProjector(const ProjectorDims& dims, std::int64_t nnz, const DrawKey& key, Budget& budget);

  const ProjectorDims& dims() const noexcept { return dims_; }
  std::uint64_t generation() const noexcept { return key_.generation; }
  SparseRows p() const noexcept { return p_.rows(); }
  SparseRows q() const noexcept { return q_.rows(); }
  SparseColumns q_columns() const noexcept { return columns_; }

  // Values may be written; finish with values_changed(), which brings the columns up to date.
  std::span<float> p_value() noexcept { return p_.value.as<float>(); }
  std::span<float> q_value() noexcept { return q_.value.as<float>(); }
  void values_changed();

  static std::uint64_t bytes(const ProjectorDims& dims, std::int64_t nnz) noexcept;

 private:
  struct Half {
    Half(std::int64_t rows, std::int64_t cols, std::int64_t nnz, Budget& budget);
    void draw(const DrawKey& key, DrawPurpose purpose, std::int64_t row_offset);
    SparseRows rows() const noexcept;

    std::int64_t row_count, cols, nnz;
    Buffer index, value;
  };

  ProjectorDims dims_;
  DrawKey key_;
  Half p_, q_;
  Buffer column_offset_, column_row_, column_value_;
  SparseColumns columns_;
};

// The shapes of P and Q of a block family; their `value` is null.
struct BlockLayouts {
  BlockRows p, q;

  std::uint64_t bytes() const noexcept {
    return 4 * static_cast<std::uint64_t>(p.rows * p.kept + q.rows * q.kept);
  }
};

// Rows in contiguous groups of `block`, of which round(ratio * rows of the group) columns are kept,
// at least one. A weight with fewer rows than that is one group.
BlockRows block_layout(std::int64_t rows, std::int64_t block, double ratio) noexcept;

class BlockProjector {
 public:
  // All values zero.
  BlockProjector(const BlockLayouts& layouts, Budget& budget, std::int64_t row_offset = 0);

  const ProjectorDims& dims() const noexcept { return dims_; }
  BlockRows p() const noexcept { return p_.view; }
  BlockRows q() const noexcept { return q_.view; }
  std::span<float> p_value() noexcept { return p_.value.as<float>(); }
  std::span<float> q_value() noexcept { return q_.value.as<float>(); }

  // Random orthonormal columns in every group.
  void draw(const DrawKey& key);

 private:
  struct Half {
    Half(const BlockRows& layout, Budget& budget);
    void draw(const DrawKey& key, DrawPurpose purpose, std::int64_t first_group);
    Buffer value;
    BlockRows view;
  };

  ProjectorDims dims_;
  Half p_, q_;
};

}  // namespace sluiceway
