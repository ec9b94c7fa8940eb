// Predicts the makespan of one steady-state step for each order, from times per layer.
//
//   barrier  F + max(B, sum o) + max(sum u, sum h)             [docs/schedule.md section 4]
//   fcfs     F + max(B + o + u + h, B/L + L s + (o + u + h - s))          equal layers
//   edf      max(F + B + o + u + h, L s + (F + B)/L + (o + u + h - s))    equal layers
//
// predict_makespan() passes the layers through the lanes by the executor's own rules (step_plan.h).
// For equal layers it gives fcfs's form exactly; edf's form and at most one layer's times more,
// where device and lanes are about equally busy; and barrier's form and the fill of its two halves,
// at most B/L + o + min(u, h). Layer 0 comes first in the forward.
#pragma once

#include <vector>

#include "runtime/schedule/lane.h"

namespace sluiceway {

struct LayerCost {  // Seconds.
  double forward = 0;
  double backward = 0;  // Compression included.
  double d2h = 0;
  double host = 0;
  double h2d = 0;
  double apply = 0;  // On the device's side stream.
};

enum class NormBarrier {
  kNone,   // Host work starts as soon as a payload has crossed (speculative, or nothing to clip).
  kExact,  // Host work starts when the last layer's norm is known.
};

// Steady state: the average over steps after the pipeline has filled. Cost: O(L log L) a step.
double predict_makespan(const std::vector<LayerCost>& layers, Order order, NormBarrier barrier,
                        int transition_layer);

// The paper's TransitionLayer = L - (B - (o + u + h)) / s, clamped to [0, L], from layer means.
int transition_layer(const std::vector<LayerCost>& layers);

// max(device, d2h, host, h2d) busy time of a step: no schedule is faster.
double lower_bound(const std::vector<LayerCost>& layers);

}  // namespace sluiceway
