// Names of codec families, and what each makes of a configuration.
#include <algorithm>
#include <array>
#include <cmath>
#include <string>

#include "compress/codec_families.h"
#include "kernels/base/check.h"

namespace sluiceway {
namespace {

constexpr std::string_view kAutoFamily = "block_random";
constexpr std::array<std::string_view, 7> kFamilies = {
    "svd", "block_random", "block_pca", "sparse_learned", "sparse_random", "identity", "none"};
// Of the experiments; not offered to users, so not listed either.
constexpr std::array<std::string_view, 2> kBaselines = {"galore", "topk_columns"};

template <typename Names>
bool contains(const Names& names, std::string_view name) {
  return std::find(names.begin(), names.end(), name) != names.end();
}

template <typename Names>
std::string listed(const Names& names) {
  std::string text;
  for (const std::string_view name : names) text += (text.empty() ? "" : " ") + std::string(name);
  return text;
}

bool is_sparse(std::string_view family) {
  return family == "sparse_learned" || family == "sparse_random";
}

void check_ratio(const CodecConfig& config) {
  SLUICEWAY_CHECK(config.ratio > 0 && config.ratio <= 1, "codec: ratio is ", config.ratio,
                  ", expected more than 0 and at most 1");
}

void check_sparse(const CodecConfig& config, std::int64_t m, std::int64_t n) {
  SLUICEWAY_CHECK(config.nnz > 0, "codec: nnz is ", config.nnz, ", expected 1 or more");
  if (config.d == 0) return check_ratio(config);
  SLUICEWAY_CHECK(config.d <= std::min(m, n), "codec: d is ", config.d,
                  ", expected at most the smaller side of a ", m, "x", n,
                  " weight; lower d or leave this weight out of target");
}

void check_block(const CodecConfig& config) {
  check_ratio(config);
  SLUICEWAY_CHECK(config.block > 0 && config.block <= kMaxBlock, "codec: block is ", config.block,
                  " rows, expected 1 to ", kMaxBlock);
}

// The family's name, when everything it will be given is right.
std::string checked_family(const CodecConfig& config, std::int64_t m, std::int64_t n) {
  std::string family = resolve_codec(config.name);
  SLUICEWAY_CHECK(m > 0 && n > 0, "codec: weight is ", m, "x", n,
                  ", expected at least one row and one column");
  SLUICEWAY_CHECK(config.d >= 0, "codec: d is ", config.d, ", expected 0 (use ratio) or more");
  SLUICEWAY_CHECK(config.d == 0 || is_sparse(family), "codec: d is ", config.d, " for ", family,
                  ", expected none: only sparse families have a square core; use ratio");
  if (is_sparse(family)) check_sparse(config, m, n);
  if (is_block(family)) check_block(config);
  return family;
}

std::int64_t share(double ratio, std::int64_t size) {
  return std::max<std::int64_t>(1, std::llround(ratio * static_cast<double>(size)));
}

}  // namespace

ProjectorDims sparse_dims(const CodecConfig& config, std::int64_t m, std::int64_t n) {
  if (config.d > 0) return {.m = m, .n = n, .dm = config.d, .dn = config.d};
  return {.m = m, .n = n, .dm = share(config.ratio, m), .dn = share(config.ratio, n)};
}

float orthonormal_scale(const ProjectorDims& dims) noexcept {
  const double kept = static_cast<double>(dims.dm) / static_cast<double>(dims.m) *
                      static_cast<double>(dims.dn) / static_cast<double>(dims.n);
  return static_cast<float>(1 / std::sqrt(kept));
}

double relative_bias(const BiasNorm& norm) noexcept {
  return norm.grad_sq == 0 ? 0 : std::sqrt(norm.bias_sq / norm.grad_sq);
}

double seconds_since(std::chrono::steady_clock::time_point start) {
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

void require_host_stream(StreamRef stream, std::string_view codec) {
  if (stream.device < 0) return;
  throw Unavailable(concat(codec, ": stream of CUDA device ", stream.device,
                           ", expected the host device; this version has no device projectors"));
}

MomentTransport parse_transport(std::string_view name) {
  if (name == "projected") return MomentTransport::kProjected;
  if (name == "keep") return MomentTransport::kKeep;
  if (name == "reset") return MomentTransport::kReset;
  throw InvalidArgument(concat("refresh: transport is \"", name,
                               "\", expected \"projected\", \"keep\" or \"reset\""));
}

std::string resolve_codec(std::string_view name) {
  if (name == "auto") return std::string(kAutoFamily);
  SLUICEWAY_CHECK(contains(kFamilies, name) || contains(kBaselines, name), "codec: \"", name,
                  "\" does not exist, expected one of auto ", listed(kFamilies));
  return std::string(name);
}

std::unique_ptr<GradientCodec> make_codec(const CodecConfig& config, std::int64_t m, std::int64_t n,
                                          std::uint64_t weight_hash, Budget& budget) {
  const std::string family = checked_family(config, m, n);
  const CodecRequest request{config, m, n, weight_hash};
  if (is_block(family)) return make_block(family, request, budget);
  if (is_sparse(family)) return make_sparse(family, request, budget);
  return make_plain(family, request);
}

CoreShape core_shape(const CodecConfig& config, std::int64_t m, std::int64_t n) {
  const std::string family = checked_family(config, m, n);
  if (family == "identity") return {m, n};
  if (family == "none") return {};
  if (is_block(family)) {
    const BlockLayouts layouts = block_layouts(family, config, m, n);
    return {layouts.p.cols, layouts.q.cols};
  }
  const ProjectorDims dims = sparse_dims(config, m, n);
  return {dims.dm, dims.dn};
}

std::uint64_t projector_bytes(const CodecConfig& config, std::int64_t m, std::int64_t n) {
  const std::string family = checked_family(config, m, n);
  if (is_block(family)) return block_layouts(family, config, m, n).bytes();
  if (is_sparse(family)) return SparseProjector::bytes(sparse_dims(config, m, n), config.nnz);
  return 0;
}

std::size_t codec_scratch_elems(const CodecConfig& config, std::int64_t m, std::int64_t n) {
  const std::string family = checked_family(config, m, n);
  if (is_block(family)) return block_scratch_elems(block_layouts(family, config, m, n));
  if (is_sparse(family)) return sparse_scratch_elems(sparse_dims(config, m, n), config.nnz);
  return 0;
}

}  // namespace sluiceway
