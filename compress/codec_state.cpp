#include "compress/codec_state.h"

#include <algorithm>
#include <bit>
#include <cstring>
#include <string>
#include <type_traits>

#include "compress/codec_families.h"
#include "compress/projector.h"
#include "kernels/base/check.h"

namespace sluiceway {
namespace {

static_assert(std::endian::native == std::endian::little);
static_assert(std::is_trivially_copyable_v<CodecStateHeader>);
static_assert(sizeof(CodecStateHeader) == 88, "no padding: the header is stored as it is");

constexpr std::array<char, 8> kMagic = {'s', 'w', 'p', 'r', 'o', 'j', '1', '\0'};
constexpr std::size_t kHeaderBytes = kMagic.size() + sizeof(CodecStateHeader);

template <typename T>
void require_equal(const char* what, const T& is, const T& expected) {
  if (is == expected) return;
  throw Corrupt(concat("codec state: ", what, " is ", is, ", expected ", expected));
}

std::string_view family_name(const CodecStateHeader& header) {
  const auto end = std::find(header.family.begin(), header.family.end(), '\0');
  return {header.family.data(), static_cast<std::size_t>(end - header.family.begin())};
}

}  // namespace

void CodecStateHeader::set_family(std::string_view name) noexcept {
  std::copy_n(name.begin(), std::min(name.size(), family.size()), family.begin());
}

CodecStateHeader header_of(const CodecRequest& request, const ProjectorDims& dims) {
  CodecStateHeader header;
  header.set_family(request.family.name);
  header.seed = request.config.seed;
  header.weight_hash = request.weight_hash;
  header.m = dims.m;
  header.n = dims.n;
  header.dm = dims.dm;
  header.dn = dims.dn;
  return header;
}

std::vector<std::byte> write_codec_state(CodecStateHeader header, std::span<const float> p,
                                         std::span<const float> q) {
  header.value_count = p.size() + q.size();
  std::vector<std::byte> bytes(kHeaderBytes + header.value_count * sizeof(float));
  std::byte* out = bytes.data();
  const auto append = [&out](const void* from, std::size_t count) {
    if (count != 0) std::memcpy(out, from, count);
    out += count;
  };
  append(kMagic.data(), kMagic.size());
  append(&header, sizeof(header));
  append(p.data(), p.size_bytes());
  append(q.data(), q.size_bytes());
  return bytes;
}

CodecState read_codec_state(std::span<const std::byte> bytes, CodecStateHeader expected) {
  if (bytes.size() < kHeaderBytes || std::memcmp(bytes.data(), kMagic.data(), kMagic.size()) != 0) {
    throw Corrupt(concat("codec state: ", format_bytes(bytes.size()),
                         " do not start with a header of ", kHeaderBytes, " bytes"));
  }
  CodecState state;
  std::memcpy(&state.header, bytes.data() + kMagic.size(), sizeof(CodecStateHeader));
  const CodecStateHeader& is = state.header;
  require_equal("family", family_name(is), family_name(expected));
  require_equal("seed", is.seed, expected.seed);
  require_equal("weight hash", is.weight_hash, expected.weight_hash);
  require_equal("rows of the weight", is.m, expected.m);
  require_equal("columns of the weight", is.n, expected.n);
  require_equal("rows of the core", is.dm, expected.dm);
  require_equal("columns of the core", is.dn, expected.dn);
  require_equal("nonzeros or block", is.nnz, expected.nnz);
  require_equal("values", is.value_count, expected.value_count);
  const std::size_t value_bytes = bytes.size() - kHeaderBytes;
  require_equal("bytes of values", value_bytes,
                static_cast<std::size_t>(is.value_count) * sizeof(float));
  state.values.resize(static_cast<std::size_t>(is.value_count));
  if (value_bytes != 0) std::memcpy(state.values.data(), bytes.data() + kHeaderBytes, value_bytes);
  return state;
}

}  // namespace sluiceway
