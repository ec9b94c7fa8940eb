// What the factory asks of each family; one .cpp a family. Only compress/ includes this.
#pragma once

#include <chrono>
#include <cstdint>
#include <memory>

#include "compress/gradient_codec.h"
#include "compress/projector.h"

namespace sluiceway {

// Checked arguments of make_codec().
struct CodecRequest {
  CodecConfig config;
  std::int64_t m = 0;
  std::int64_t n = 0;
  std::uint64_t weight_hash = 0;
};

// Family identity or none.
std::unique_ptr<GradientCodec> make_plain(std::string_view family, const CodecRequest& request);
// Family block_random, block_pca, svd, galore or topk_columns.
std::unique_ptr<GradientCodec> make_block(std::string_view family, const CodecRequest& request,
                                          Budget& budget);
// Family sparse_random or sparse_learned.
std::unique_ptr<GradientCodec> make_sparse(std::string_view family, const CodecRequest& request,
                                           Budget& budget);

bool is_block(std::string_view family) noexcept;
std::size_t block_scratch_elems(const BlockLayouts& layouts) noexcept;
std::size_t sparse_scratch_elems(const ProjectorDims& dims, std::int64_t nnz) noexcept;
BlockLayouts block_layouts(std::string_view family, const CodecConfig& config, std::int64_t m,
                           std::int64_t n);

// m x n and the core that `config` gives it: d x d, or round(ratio m) x round(ratio n).
ProjectorDims sparse_dims(const CodecConfig& config, std::int64_t m, std::int64_t n);

// What makes an update of a core with elements of size 1 one of size 1 on the weight, where P and Q
// have orthonormal columns: 1 / sqrt(dm dn / (m n)), the 1/f of docs/algorithm.md section 4.
float orthonormal_scale(const ProjectorDims& dims) noexcept;

double seconds_since(std::chrono::steady_clock::time_point start);

// Unavailable on a CUDA stream: the arrays of this version's projectors are in host memory.
void require_host_stream(StreamRef stream, std::string_view codec);

}  // namespace sluiceway
