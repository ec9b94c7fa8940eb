// What a codec family is: one row of a table, and one .cpp that the row points into.
//
// Everything that asks for a family by name asks this table: make_codec() and its companions, the
// errors that list the names, the default of a refresh, and Python. A program that links the
// library adds a family of its own with register_codec().
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

// Whether what a codec leaves of a gradient holds nothing of the core, so that a residual may train
// with it: its columns are orthonormal, or it has none.
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
  // A question about a weight of m x n, answered without allocating anything.
  template <typename Answer>
  using Of = std::function<Answer(const CodecConfig& config, std::int64_t m, std::int64_t n)>;

  std::string name;              // At most 16 characters, those that a saved state keeps.
  bool offered = false;          // To users, and in errors; not so a baseline of the experiments.
  bool learns = false;           // refresh() may change the projectors.
  bool has_square_core = false;  // Takes CodecConfig::d.
  Complement complement = Complement::kNever;
  std::int64_t refresh_every = 0;  // Steps, where nobody says otherwise; 0: never.

  Of<void> check;      // InvalidArgument: a number that is out of range; may be empty.
  Of<CoreShape> core;  // Has no elements where nothing crosses.
  Of<std::uint64_t> projector_bytes;    // Device; reserved by make(). May be empty: none.
  Of<std::size_t> scratch_elems;        // As GradientCodec::scratch_elems(); may be empty: none.
  Of<std::size_t> range_scratch_elems;  // As GradientCodec's; may be empty: none.
  // As GradientCodec's; may be empty: it projects nothing.
  Of<std::size_t> project_scratch_elems;
  Of<std::size_t> kept_elems;   // As GradientCodec::kept_elems(); may be empty: none.
  Of<std::uint64_t> fit_bytes;  // Device; torch's, while projectors are fitted. May be empty: none.
  std::function<std::unique_ptr<GradientCodec>(const CodecRequest& request)> make;

  bool leaves_complement(std::int64_t nnz) const noexcept {
    return complement == Complement::kAlways ||
           (complement == Complement::kIfOneNonzero && nnz == 1);
  }
};

// InvalidArgument: a name that is taken, "auto", empty or too long, or a row without core or make.
void register_codec(CodecFamily family);

std::vector<const CodecFamily*> codec_families();  // As they were registered.

// Null where there is none; "auto" is none, see resolve_codec().
const CodecFamily* find_codec_family(std::string_view name);

}  // namespace sluiceway
