// What the factory asks of each family; one .cpp a family. Only compress/ includes this.
#pragma once

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

std::unique_ptr<GradientCodec> make_identity(const CodecRequest& request);
std::unique_ptr<GradientCodec> make_block_random(const CodecRequest& request, Budget& budget);
std::unique_ptr<GradientCodec> make_sparse_learned(const CodecRequest& request, Budget& budget);

// m x n and the core that `config` gives it: d x d, or round(ratio m) x round(ratio n).
ProjectorDims sparse_dims(const CodecConfig& config, std::int64_t m, std::int64_t n);

// Unavailable on a CUDA stream: the arrays of this version's projectors are in host memory.
void require_host_stream(StreamRef stream, std::string_view codec);

}  // namespace sluiceway
