// What Python says of one compressed weight, as keywords;
// python/sluiceway/config/engines/subspace.py declares them.
//
// Errors: InvalidArgument names a keyword that is missing, or one that is none.
#pragma once

#include "kernels/base/check.h"
#include "kernels/philox.h"
#include "python/bindings/bindings.h"
#include "runtime/engine/subspace/weight_plan.h"

namespace sluiceway {

inline constexpr const char* kWeightOptionsDoc =
    "Keywords: codec ratio d nnz block seed q_of wire tier weight_update residual second_moment. "
    "q_of: "
    "weights with the same one share Q, empty for a Q of its own.";

// Takes one value out, so that what remains at the end is what nobody reads.
template <typename T>
T take_option(py::dict& options, const char* name) {
  SLUICEWAY_CHECK(options.contains(name), "WeightSpec: ", name, " is missing, expected a value; ",
                  kWeightOptionsDoc);
  T value = options[name].cast<T>();
  options.attr("pop")(name);
  return value;
}

inline std::string first_key(const py::dict& options) { return py::str((*options.begin()).first); }

// `spec` has its rows, columns and dtype already.
inline void set_weight_options(WeightSpec& spec, const py::kwargs& given) {
  py::dict options = given.attr("copy")();  // A caller may make several weights of one.
  spec.codec.name = take_option<std::string>(options, "codec");
  spec.codec.ratio = take_option<double>(options, "ratio");
  spec.codec.d = take_option<std::int64_t>(options, "d");
  spec.codec.nnz = take_option<std::int64_t>(options, "nnz");
  spec.codec.block = take_option<std::int64_t>(options, "block");
  spec.codec.seed = take_option<std::uint64_t>(options, "seed");
  const auto q_of = take_option<std::string>(options, "q_of");
  spec.codec.q_hash = q_of.empty() ? 0 : stable_hash(q_of);
  spec.wire = parse_wire(take_option<std::string>(options, "wire"));
  spec.tier = parse_core_tier(take_option<std::string>(options, "tier"));
  spec.rounding = parse_rounding(take_option<std::string>(options, "weight_update"), spec.dtype);
  spec.residual = parse_residual(take_option<std::string>(options, "residual"));
  spec.second_moment = parse_second_moment(take_option<std::string>(options, "second_moment"));
  SLUICEWAY_CHECK(options.empty(), "WeightSpec: ", first_key(options),
                  " is no option of a weight; ", kWeightOptionsDoc);
}

}  // namespace sluiceway
