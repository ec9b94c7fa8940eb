#include "runtime/engine/zo/written_steps.h"

#include "kernels/base/check.h"
#include "runtime/engine/zo/log_theta.h"

namespace sluiceway {

std::vector<PendingUpdate> pending_of(const ZoUpdates& updates, std::uint64_t tensor, int group) {
  std::vector<PendingUpdate> pending;
  pending.reserve(updates.records.size());
  for (const ZoUpdates::Record& record : updates.records) {
    const StepNoise& noise = record.noise;
    pending.push_back(
        {{noise.seed, noise.step, tensor, noise.purpose}, of_group(record.scale, group, 0)});
  }
  return pending;
}

void write_steps(const WrittenSteps& steps, const ZoWeight& weight, std::uint64_t first,
                 std::span<std::byte> elements, std::uint64_t from, StreamRef stream) {
  SLUICEWAY_CHECK(from >= steps.first && from <= steps.next(), "written steps: ", weight.name,
                  " is of step ", from, ", expected ", steps.first, " to ", steps.next());
  const std::uint64_t tensor = stable_hash(weight.name);
  for (std::uint64_t step = from; step < steps.next(); ++step) {
    const ZoUpdates& updates = *steps.steps[step - steps.first];
    const std::vector<PendingUpdate> pending = pending_of(updates, tensor, weight.group);
    const BaseRounding of_base(weight.dtype(), steps.run_seed, step + 1, tensor);
    materialise(elements, weight.dtype(), elements, weight.dtype(),
                {steps.family, first, of_group(updates.gamma, weight.group, 1), pending},
                of_base.rounding, of_base.key, stream);
  }
}

}  // namespace sluiceway
