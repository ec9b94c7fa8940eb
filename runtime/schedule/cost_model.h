// Predicts the makespan of one steady-state step for each order from the times of each layer.
//
//   barrier  F + max(B, sum o) + max(sum u, sum h)
//   fcfs     F + max(B + o + u + h, B/L + L s + (o + u + h - s))          equal layers
//   edf      max(F + B + o + u + h, L s + (F + B)/L + (o + u + h - s))    equal layers
//
// with three lanes: o before the gate, u and h after it. predict_makespan() passes the layers
// through any list of lanes by the executor's own rules (step_plan.h), one payload a layer and one
// at a time in a lane. For equal layers its result equals the form for fcfs; exceeds the form for
// edf by at most one layer's times, where device and lanes are about equally busy; and exceeds the
// form for barrier by the fill of its two halves, at most B/L + o + min(u, h). Layer 0 comes first
// in the forward.
#pragma once

#include <vector>

#include "runtime/schedule/lane.h"

namespace sluiceway {

struct LayerCost {  // Seconds.
  double forward = 0;
  double backward = 0;        // Includes compression.
  std::vector<double> lanes;  // One per lane, as many for every layer; 0: the layer passes at once.
};

enum class NormBarrier {
  kNone,   // LanePlan::gather_before starts once a payload is there (speculative, no clip).
  kExact,  // It starts when the last layer's norm is known.
};

// Returns the steady state: the average over steps after the pipeline has filled. Throws
// InvalidArgument for an invalid time or layers with different numbers of lanes. Cost: O(L log L) a
// lane.
double predict_makespan(const std::vector<LayerCost>& layers, const LanePlan& plan, Order order,
                        NormBarrier barrier, int transition_layer);

// Returns the paper's TransitionLayer = L - (B - (o + u + h)) / s, clamped to [0, L], from layer
// means over all lanes but the device's own.
int transition_layer(const std::vector<LayerCost>& layers, const LanePlan& plan);

// Returns the busy time of the device or of the busiest lane in a step: no schedule is faster.
double lower_bound(const std::vector<LayerCost>& layers);

}  // namespace sluiceway
