#include "runtime/schedule/lane.h"

#include "kernels/base/check.h"

namespace sluiceway {

std::string_view to_string(Order order) noexcept {
  switch (order) {
    case Order::kBarrier:
      return "barrier";
    case Order::kFcfs:
      return "fcfs";
    case Order::kPaper:
      return "paper";
    case Order::kEdf:
      return "edf";
  }
  return "?";
}

Order parse_order(std::string_view name) {
  for (const Order order : {Order::kBarrier, Order::kFcfs, Order::kPaper, Order::kEdf}) {
    if (name == to_string(order)) return order;
  }
  throw_invalid_argument(
      concat("parse_order: order is \"", name, "\", expected barrier, fcfs, paper or edf"));
}

}  // namespace sluiceway
