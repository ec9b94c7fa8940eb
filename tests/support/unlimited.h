// A budget that refuses nothing, for tests of other things.
#pragma once

#include "runtime/memory/budget.h"

namespace sluiceway::test {

inline Budget unlimited() {
  return Budget({Budget::kUnlimited, Budget::kUnlimited, Budget::kUnlimited, Budget::kUnlimited});
}

}  // namespace sluiceway::test
