#include "runtime/schedule/lane.h"

#include "kernels/base/check.h"

namespace sluiceway {

std::string_view to_string(Lane lane) noexcept {
  switch (lane) {
    case Lane::kD2h:
      return "d2h";
    case Lane::kHost:
      return "host";
    case Lane::kH2d:
      return "h2d";
    case Lane::kApply:
      return "apply";
  }
  return "?";
}

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
