// A codec family: one row of a table, which points to the functions of one .cpp file.
//
// Everything that looks a family up by name uses this table: make_codec() and its companions, the
// errors that list the names, the default refresh interval, and Python. A program that links the
// library adds its own family with register_codec().
//
// Ownership:     rows are copied in and live as long as the program.
// Thread safety: every call from any thread.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "compress/gradient_codec.h"

namespace sluiceway {

// States when a gradient's residual contains nothing of the core, so that it may train the weight
// too: when the codec's columns are orthonormal, or it has no columns.
enum class Complement : std::uint8_t { kNever, kAlways, kIfOneNonzero };

struct CodecFamily;

struct CodecRequest {  // Checked arguments of make_codec().
  const CodecFamily& family;
  CodecConfig config;
  std::int64_t m = 0;
  std::int64_t n = 0;
  std::uint64_t weight_hash = 0;
  DeviceId device;
  Budget& budget;
};

struct CodecFamily {
  // A function of an m x n weight that allocates nothing.
  template <typename Answer>
  using Of = std::function<Answer(const CodecConfig& config, std::int64_t m, std::int64_t n)>;

  std::string name;      // At most 16 characters, the number that a saved state keeps.
  bool offered = false;  // Errors and help list it; baselines of the experiments are not listed.
  bool learns = false;   // refresh() may change the projectors.
  bool has_square_core = false;  // Takes CodecConfig::d.
  Complement complement = Complement::kNever;
  std::int64_t refresh_every = 0;  // Steps, unless the configuration sets it; 0: never.

  Of<void> check;      // Throws InvalidArgument for a number out of range; may be empty.
  Of<CoreShape> core;  // A core without elements if nothing crosses the link.
  Of<std::uint64_t> projector_bytes;    // Device bytes that make() reserves; empty: none.
  Of<std::size_t> scratch_elems;        // Like GradientCodec::scratch_elems(); empty: none.
  Of<std::size_t> range_scratch_elems;  // Like range_scratch_elems() there; empty: none.
  // Like GradientCodec::project_scratch_elems(); empty: the codec does not project rows.
  Of<std::size_t> project_scratch_elems;
  Of<std::size_t> kept_elems;   // Like GradientCodec::kept_elems(); empty: none.
  Of<std::uint64_t> fit_bytes;  // Device bytes of torch's during a fit; empty: none.
  std::function<std::unique_ptr<GradientCodec>(const CodecRequest& request)> make;

  bool leaves_complement(std::int64_t nnz) const noexcept {
    return complement == Complement::kAlways ||
           (complement == Complement::kIfOneNonzero && nnz == 1);
  }
};

// Throws InvalidArgument for a name that is taken, "auto", empty or too long, and for a row without
// core or make.
void register_codec(CodecFamily family);

std::vector<const CodecFamily*> codec_families();  // In the order of registration.

// Returns null if there is no such family; "auto" is not one, see resolve_codec().
const CodecFamily* find_codec_family(std::string_view name);

}  // namespace sluiceway
