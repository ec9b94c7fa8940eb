// Sets the fields of an options struct from the keywords of a constructor in Python.
//
// Each option is one row: its keyword, and the field that it sets or a function that sets it.
// python/sluiceway/config declares the options with their defaults, so all rows are required.
//
//   static const Keywords<Options> keywords("EngineOptions", {
//       {"seed", &Options::seed},
//       {"max_norm", [](Options& o, double norm) { o.gate.max_norm = norm; }},
//   });
//
// Errors: InvalidArgument names a keyword that is missing or unknown, or whose value has the wrong
//         type, and lists all keywords.
#pragma once

#include <pybind11/stl.h>

#include <algorithm>
#include <functional>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include "kernels/base/check.h"
#include "python/bindings/bindings.h"

namespace sluiceway {

template <typename Options>
class Keyword {
  template <typename Set, typename Value>
  static std::decay_t<Value> value_of(void (Set::*)(Options&, Value) const);

 public:
  template <typename Field>
  Keyword(const char* name, Field Options::*field)
      : Keyword(name, [field](Options& options, Field value) { options.*field = value; }) {}

  // `set` is a lambda with two parameters, the options and the value.
  template <typename Set>
  requires std::is_class_v<Set> Keyword(const char* name, Set set)
      : name_(name), set_([set](Options& options, const py::handle& value) {
          set(options, value.cast<decltype(value_of(&Set::operator()))>());
        }) {}

  const std::string& name() const noexcept { return name_; }
  void set(Options& options, const py::handle& value) const { set_(options, value); }

 private:
  std::string name_;
  std::function<void(Options&, const py::handle&)> set_;
};

template <typename Options>
using KeywordRows = std::vector<Keyword<Options>>;

template <typename Options>
class Keywords {
 public:
  // `owner` is the class that errors name.
  Keywords(const char* owner, KeywordRows<Options> rows, const KeywordRows<Options>& more = {})
      : owner_(owner), rows_(std::move(rows)) {
    rows_.insert(rows_.end(), more.begin(), more.end());
  }

  // In the order of the rows, so that a row may use what an earlier one has set.
  void set(Options& options, const py::kwargs& given) const {
    for (const auto& [key, value] : given) {
      const std::string name = py::str(key);
      SLUICEWAY_CHECK(has(name), owner_, ": ", name, " is no option; ", listed());
    }
    for (const Keyword<Options>& row : rows_) {
      SLUICEWAY_CHECK(given.contains(row.name()), owner_, ": ", row.name(), " is missing; ",
                      listed());
      set(options, row, given[row.name().c_str()]);
    }
  }

  // For the documentation of the constructor.
  std::string listed() const {
    std::string names;
    for (const Keyword<Options>& row : rows_) names += (names.empty() ? "" : ", ") + row.name();
    return "keywords are " + names;
  }

 private:
  bool has(const std::string& name) const {
    return std::any_of(rows_.begin(), rows_.end(),
                       [&](const Keyword<Options>& row) { return row.name() == name; });
  }

  void set(Options& options, const Keyword<Options>& row, const py::handle& value) const {
    try {
      row.set(options, value);
    } catch (const py::cast_error&) {
      throw InvalidArgument(concat(owner_, ": ", row.name(), " is ", std::string(py::repr(value)),
                                   ", which has the wrong type"));
    }
  }

  std::string owner_;
  KeywordRows<Options> rows_;
};

}  // namespace sluiceway
