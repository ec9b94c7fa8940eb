// The keywords of one compressed weight; python/sluiceway/config/engines/subspace.py declares them.
#pragma once

#include <cstdint>
#include <string>

#include "kernels/philox.h"
#include "python/bindings/keywords.h"
#include "runtime/engine/subspace/weight_plan.h"

namespace sluiceway {

// `spec` has its rows, columns and dtype already.
inline const Keywords<WeightSpec>& weight_keywords() {
  using std::string;
  static const Keywords<WeightSpec> keywords(
      "WeightSpec",
      {
          {"codec", [](WeightSpec& s, const string& name) { s.codec.name = name; }},
          {"ratio", [](WeightSpec& s, double ratio) { s.codec.ratio = ratio; }},
          {"d", [](WeightSpec& s, std::int64_t d) { s.codec.d = d; }},
          {"nnz", [](WeightSpec& s, std::int64_t nnz) { s.codec.nnz = nnz; }},
          {"block", [](WeightSpec& s, std::int64_t block) { s.codec.block = block; }},
          {"seed", [](WeightSpec& s, std::uint64_t seed) { s.codec.seed = seed; }},
          {"q_of", [](WeightSpec& s,
                      const string& of) { s.codec.q_hash = of.empty() ? 0 : stable_hash(of); }},
          {"wire", [](WeightSpec& s, const string& name) { s.wire = parse_wire(name); }},
          {"tier", [](WeightSpec& s, const string& name) { s.tier = parse_core_tier(name); }},
          {"weight_update",
           [](WeightSpec& s, const string& name) { s.rounding = parse_rounding(name, s.dtype); }},
          {"residual",
           [](WeightSpec& s, const string& name) { s.residual = parse_residual(name); }},
          {"second_moment",
           [](WeightSpec& s, const string& name) { s.second_moment = parse_second_moment(name); }},
      });
  return keywords;
}

inline std::string weight_keywords_doc() {
  return weight_keywords().listed() +
         "; weights with the same q_of share Q, and each with an empty one has its own.";
}

}  // namespace sluiceway
