// Finds codecs by name, and makes or measures one from a configuration.
#include <string>

#include "compress/codec_families.h"
#include "kernels/base/check.h"

namespace sluiceway {
namespace {

constexpr std::string_view kAutoFamily = "block_random";

// Returns the row of the family after checking all arguments for it.
const CodecFamily& checked_family(const CodecConfig& config, std::int64_t m, std::int64_t n) {
  const CodecFamily& family = *find_codec_family(resolve_codec(config.name));
  SLUICEWAY_CHECK(m > 0 && n > 0, "codec: weight is ", m, "x", n,
                  ", expected at least one row and one column");
  SLUICEWAY_CHECK(config.d >= 0, "codec: d is ", config.d, ", expected 0 (use ratio) or more");
  SLUICEWAY_CHECK(config.d == 0 || family.has_square_core, "codec: d is ", config.d, " for ",
                  family.name, ": only sparse families have a square core; use ratio");
  if (family.check) family.check(config, m, n);
  return family;
}

template <typename Answer>
Answer ask(CodecFamily::Of<Answer> CodecFamily::*question, const CodecConfig& config,
           std::int64_t m, std::int64_t n) {
  const auto& answer = checked_family(config, m, n).*question;
  return answer ? answer(config, m, n) : Answer{};
}

}  // namespace

std::string resolve_codec(std::string_view name) {
  if (name == "auto") return std::string(kAutoFamily);
  if (find_codec_family(name) != nullptr) return std::string(name);
  std::string offered = "auto";
  for (const CodecFamily* family : codec_families()) {
    if (family->offered) offered += " " + family->name;
  }
  throw InvalidArgument(concat("codec: \"", name, "\" does not exist, expected one of ", offered));
}

std::unique_ptr<GradientCodec> make_codec(const CodecConfig& config, std::int64_t m, std::int64_t n,
                                          std::uint64_t weight_hash, DeviceId device,
                                          Budget& budget) {
  const CodecFamily& family = checked_family(config, m, n);
  return family.make({family, config, m, n, weight_hash, device, budget});
}

CoreShape core_shape(const CodecConfig& config, std::int64_t m, std::int64_t n) {
  return ask(&CodecFamily::core, config, m, n);
}

std::uint64_t projector_bytes(const CodecConfig& config, std::int64_t m, std::int64_t n) {
  return ask(&CodecFamily::projector_bytes, config, m, n);
}

std::size_t codec_scratch_elems(const CodecConfig& config, std::int64_t m, std::int64_t n) {
  return ask(&CodecFamily::scratch_elems, config, m, n);
}

std::size_t refresh_scratch_elems(const CodecConfig& config, std::int64_t m, std::int64_t n) {
  return codec_scratch_elems(config, m, n) + ask(&CodecFamily::kept_elems, config, m, n);
}

std::size_t range_scratch_elems(const CodecConfig& config, std::int64_t m, std::int64_t n) {
  return ask(&CodecFamily::range_scratch_elems, config, m, n);
}

std::size_t project_scratch_elems(const CodecConfig& config, std::int64_t m, std::int64_t n) {
  return ask(&CodecFamily::project_scratch_elems, config, m, n);
}

std::uint64_t fit_bytes(const CodecConfig& config, std::int64_t m, std::int64_t n) {
  return ask(&CodecFamily::fit_bytes, config, m, n);
}

}  // namespace sluiceway
