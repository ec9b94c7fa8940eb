#include "runtime/engine/zo/zo_pass.h"

#include "kernels/base/check.h"
#include "runtime/engine/zo/log_theta.h"
#include "runtime/engine/zo/low_rank_updates.h"

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

void write_steps(const WrittenSteps& steps, const StreamedWeight& weight, std::uint64_t first,
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

void ZoPass::write_steps(const StreamedWeight& weight, std::span<std::byte> elements,
                         std::uint64_t from, StreamRef stream) const {
  sluiceway::write_steps(*steps, weight, 0, elements, from, stream);
}

void ZoPass::make_copies(const StreamedWeight& weight, int round, const TurnCopies& copies,
                         StreamRef stream) const {
  static const ZoUpdates none;
  const ZoUpdates& all = updates ? *updates : none;
  const std::uint64_t tensor = stable_hash(weight.name);
  const StepNoise* const noise =
      noises.empty() ? nullptr : &noises[static_cast<std::size_t>(round)];
  if (low_rank != nullptr) {
    const std::span<float> drawn(reinterpret_cast<float*>(copies.scratch.data()),
                                 copies.scratch.size() / sizeof(float));
    return low_rank->make(tensor, {copies.weight, copies.first, copies.second}, all, noise, drawn,
                          stream);
  }
  const std::vector<PendingUpdate> pending = pending_of(all, tensor, weight.group);
  const Theta theta{family, 0, of_group(all.gamma, weight.group, 1), pending};
  const std::size_t bytes = weight.copy_bytes();
  const DType dtype = weight.copy_dtype();
  if (noise == nullptr) {
    return materialise(copies.weight, weight.form, {copies.first, bytes}, dtype, theta,
                       Rounding::kNearest, {}, stream);
  }
  perturb(copies.weight, weight.form, {copies.first, bytes}, {copies.second, bytes}, dtype, theta,
          {noise->seed, noise->step, tensor, noise->purpose}, noise->eps, stream);
}

}  // namespace sluiceway
