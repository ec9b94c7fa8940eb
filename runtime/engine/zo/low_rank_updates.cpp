#include "runtime/engine/zo/low_rank_updates.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "kernels/base/check.h"
#include "kernels/perturb.h"

namespace sluiceway {
namespace {

std::span<std::byte> bytes_of(const MatrixView<float>& rows) {
  return std::as_writable_bytes(std::span(rows.data, static_cast<std::size_t>(rows.elems())));
}

AnyMatrix matrix_at(std::byte* data, const StreamedWeight& shape) {
  const std::int64_t cols = shape.elements / shape.rows;
  return {data, shape.rows, cols, cols, shape.dtype()};
}

void wait_for_all(std::span<const StreamRef> computes) {
  for (const StreamRef& compute : computes) wait_for(compute);
}

void check_weight(const StreamedWeight& weight, const LogShape& shape) {
  SLUICEWAY_CHECK(weight.group >= 0 && weight.group < static_cast<int>(shape.groups),
                  "low-rank noise: ", weight.name, " is of group ", weight.group,
                  ", expected a number below the log's ", shape.groups);
  SLUICEWAY_CHECK(weight.elements > 0 && weight.rows >= 0 &&
                      (weight.rows == 0 || weight.elements % weight.rows == 0),
                  "low-rank noise: ", weight.name, " has ", weight.elements, " elements in ",
                  weight.rows, " rows, expected 1 or more elements in whole rows, or 0 rows");
  SLUICEWAY_CHECK(weight.rows > 0 || weight.host != nullptr, "low-rank noise: ", weight.name,
                  " is a vector whose base is not in host memory; keep it there");
}

}  // namespace

LowRankUpdates::LowRankUpdates(const LogShape& shape, std::span<const StreamedWeight> weights,
                               Budget budget, DeviceId device)
    : shape_(shape),
      family_(static_cast<NoiseFamily>(shape.noise.family)),
      budget_(std::move(budget)),
      device_(device) {
  SLUICEWAY_CHECK(shape.noise.rank > 0 && shape.noise.period_steps > 0, "low-rank noise: has rank ",
                  shape.noise.rank, " and a period of ", shape.noise.period_steps,
                  " steps, expected at least 1 of each");
  std::size_t largest = 0;
  for (const StreamedWeight& weight : weights) {
    check_weight(weight, shape);
    Weight made{weight, 0, {}};
    if (!made.is_matrix()) {
      made.factors = Buffer(budget_, Tier::kDevice, device_,
                            static_cast<std::size_t>(weight.elements) * sizeof(float),
                            "the sum of updates of " + weight.name, Fill::kNone);
      largest = std::max(largest, weight.bytes());
    }
    const bool is_new = weights_.emplace(stable_hash(weight.name), std::move(made)).second;
    SLUICEWAY_CHECK(is_new, "low-rank noise: ", weight.name,
                    " occurs twice; pass each weight once");
  }
  drawn_ = Buffer(budget_, Tier::kDevice, device_, most_drawn_elems() * sizeof(float),
                  "factors of a direction", Fill::kNone);
  // take_base() needs as much for a moment, and is to fail here or not at all.
  const Buffer base(budget_, Tier::kDevice, device_, largest, "the base of vectors", Fill::kNone);
}

// ---- Views --------------------------------------------------------------------------------------

std::uint64_t LowRankUpdates::period_of(std::uint64_t step) const noexcept {
  return step / shape_.noise.period_steps - base_step_ / shape_.noise.period_steps;
}

MatrixView<float> LowRankUpdates::left(const Weight& weight, std::uint64_t period,
                                       std::uint64_t count) const {
  const std::int64_t rank = shape_.noise.rank;
  return {weight.factors.as<float>().data() +
              static_cast<std::int64_t>(period) * rank * weight.shape.rows,
          static_cast<std::int64_t>(count) * rank, weight.shape.rows};
}

MatrixView<float> LowRankUpdates::right(const Weight& weight, std::uint64_t period,
                                        std::uint64_t count) const {
  const std::int64_t rank = shape_.noise.rank;
  float* const first = left(weight, weight.periods, 0).data;
  return {first + static_cast<std::int64_t>(period) * rank * weight.cols(),
          static_cast<std::int64_t>(count) * rank, weight.cols()};
}

const LowRankUpdates::Weight& LowRankUpdates::at(std::uint64_t tensor) const {
  const auto found = weights_.find(tensor);
  SLUICEWAY_CHECK(found != weights_.end(), "low-rank noise: the weight is not among the ",
                  weights_.size(), " trained weights");
  return found->second;
}

std::size_t LowRankUpdates::most_drawn_elems() const noexcept {
  std::int64_t rows = 0;
  for (const auto& [tensor, weight] : weights_) rows = std::max(rows, weight.shape.rows);
  return static_cast<std::size_t>(rows) * shape_.noise.rank;
}

// ---- Within passes ------------------------------------------------------------------------------

void LowRankUpdates::make(std::uint64_t tensor, const Elements& elements, const ZoUpdates& updates,
                          const StepNoise* noise, std::span<float> drawn, StreamRef stream) const {
  const Weight& weight = at(tensor);
  const std::size_t bytes = weight.shape.bytes();
  SLUICEWAY_CHECK(elements.base.size() == bytes, "low-rank noise: ", weight.shape.name, " got ",
                  elements.base.size(), " bytes, expected ", bytes);
  const float gamma = of_group(updates.gamma, weight.shape.group, 1);
  if (weight.is_matrix()) {
    return make_matrix(weight, tensor, elements, gamma, noise, drawn, stream);
  }
  const auto a = std::as_bytes(weight.factors.as<float>());
  const Theta theta{.family = family_, .gamma = gamma};
  const DType dtype = weight.shape.dtype();
  if (noise == nullptr) {
    return materialise(a, DType::kF32, {elements.plus, bytes}, dtype, theta, Rounding::kNearest, {},
                       stream);
  }
  perturb(a, DType::kF32, {elements.plus, bytes}, {elements.minus, bytes}, dtype, theta,
          {noise->seed, noise->step, tensor, noise->purpose}, noise->eps, stream);
}

void LowRankUpdates::make_alone(std::uint64_t tensor, const Elements& elements,
                                const ZoUpdates& updates, const StepNoise* noise,
                                StreamRef stream) {
  if (drawn_on_ && *drawn_on_ != stream) wait_for(*drawn_on_);  // U of the last call is read there.
  drawn_on_ = stream;
  make(tensor, elements, updates, noise, drawn_.as<float>(), stream);
}

void LowRankUpdates::make_matrix(const Weight& weight, std::uint64_t tensor,
                                 const Elements& elements, float gamma, const StepNoise* noise,
                                 std::span<float> drawn, StreamRef stream) const {
  // Kernels only read what they take by the name w.
  const AnyMatrix w = matrix_at(const_cast<std::byte*>(elements.base.data()), weight.shape);
  const AnyMatrix plus = matrix_at(elements.plus, weight.shape);
  const LowRank pending{left(weight, 0, periods_), right(weight, 0, periods_)};
  if (noise == nullptr) {
    return materialise_low_rank(w, plus, pending, gamma, Rounding::kNearest, {}, 0, stream);
  }
  const std::uint64_t period = period_of(noise->step);
  SLUICEWAY_CHECK(noise->step >= base_step_ && period < weight.periods,
                  "low-rank noise: ", weight.shape.name, " has factors of ", weight.periods,
                  " periods from step ", base_step_, " on, but none for step ", noise->step);
  const MatrixView<float> u(drawn.data(), shape_.noise.rank, weight.shape.rows);
  draw_noise(drawn.first(static_cast<std::size_t>(u.elems())),
             {noise->seed, noise->step, tensor, noise->purpose}, 0, family_, stream);
  perturb_low_rank(w, plus, matrix_at(elements.minus, weight.shape), pending, gamma,
                   {u, right(weight, period, 1)}, noise->eps, stream);
}

// ---- Between passes -----------------------------------------------------------------------------

void LowRankUpdates::prepare(std::uint64_t step, std::span<const StreamRef> computes) {
  make_room(period_of(step) + 1, computes);
}

void LowRankUpdates::let_go() noexcept {
  forget();
  for (auto& [tensor, weight] : weights_) {
    if (!weight.is_matrix()) continue;
    weight.factors = Buffer();
    weight.periods = 0;
  }
}

void LowRankUpdates::follow(const ScalarLog& log, std::span<const StreamRef> computes) {
  if (is_at(log)) return;
  const StreamRef compute = computes.back();
  const bool begins = !made_;
  if (begins) base_step_ = log.base().step;
  const std::uint64_t from = made_.value_or(base_step_), to = log.next_step();
  std::vector<Replay> replays;
  for (std::uint32_t group = 0; group < shape_.groups; ++group) {
    replays.push_back(log.pending(group, from, to));
  }
  const std::uint64_t periods = to == base_step_ ? 0 : period_of(to - 1) + 1;
  make_room(periods, computes);
  wait_for_all(computes);
  made_.reset();  // Until every weight has them.
  if (begins) begin_anew(compute);
  for (auto& [tensor, weight] : weights_) {
    if (weight.is_matrix() && periods > periods_) {
      const std::span<std::byte> fresh = bytes_of(left(weight, periods_, periods - periods_));
      fill_device_bytes(device_, fresh.data(), std::byte{0}, fresh.size());
    }
    add(weight, tensor, replays[static_cast<std::size_t>(weight.shape.group)], compute);
  }
  wait_for(compute);
  periods_ = periods;
  made_ = to;
}

void LowRankUpdates::begin_anew(StreamRef compute) {
  periods_ = 0;
  for (auto& [tensor, weight] : weights_) {
    if (!weight.is_matrix()) take_base(weight, compute);
  }
}

void LowRankUpdates::take_base(Weight& vector, StreamRef compute) {
  const std::size_t bytes = vector.shape.bytes();
  const Buffer base(budget_, Tier::kDevice, device_, bytes, "the base of " + vector.shape.name,
                    Fill::kNone);
  copy_device_bytes(device_, base.data(), vector.shape.host, bytes);
  materialise({base.data(), bytes}, vector.shape.dtype(),
              std::as_writable_bytes(vector.factors.as<float>()), DType::kF32, {.family = family_},
              Rounding::kNearest, {}, compute);
  wait_for(compute);
}

void LowRankUpdates::add(Weight& weight, std::uint64_t tensor, const Replay& replay,
                         StreamRef compute) {
  const std::vector<ReplayedUpdate>& all = replay.updates;
  std::vector<PendingUpdate> part;
  for (std::size_t i = 0; i < all.size();) {
    const std::uint64_t period = period_of(all[i].step);
    const auto belongs = [&](const ReplayedUpdate& update) {
      return part.size() < kMaxPending && (!weight.is_matrix() || period_of(update.step) == period);
    };
    for (part.clear(); i < all.size() && belongs(all[i]); ++i) {
      part.push_back({{shape_.run_seed, all[i].step, tensor, all[i].direction}, all[i].scale});
    }
    const std::span<std::byte> sum = weight.is_matrix()
                                         ? bytes_of(left(weight, period, 1))
                                         : std::as_writable_bytes(weight.factors.as<float>());
    materialise(sum, DType::kF32, sum, DType::kF32, {.family = family_, .pending = part},
                Rounding::kNearest, {}, compute);
  }
}

void LowRankUpdates::make_room(std::uint64_t periods, std::span<const StreamRef> computes) {
  const auto lacks_room = [&](const auto& entry) {
    return entry.second.is_matrix() && entry.second.periods < periods;
  };
  if (std::ranges::none_of(weights_, lacks_room)) return;
  wait_for_all(computes);
  for (auto& entry : weights_) {
    if (lacks_room(entry)) grow(entry.second, entry.first, periods, computes.back());
  }
  wait_for(computes.back());
}

void LowRankUpdates::grow(Weight& matrix, std::uint64_t tensor, std::uint64_t periods,
                          StreamRef compute) {
  const std::size_t rows_and_cols = static_cast<std::size_t>(matrix.shape.rows + matrix.cols());
  Weight grown{matrix.shape, periods,
               Buffer(budget_, Tier::kDevice, device_,
                      periods * shape_.noise.rank * rows_and_cols * sizeof(float),
                      concat("room for ", periods, " periods of low-rank noise of ",
                             matrix.shape.name, " (a longer period or a lower rank takes less)"),
                      Fill::kZero)};
  const auto copy = [&](const MatrixView<float>& from, const MatrixView<float>& to) {
    copy_device_bytes(device_, to.data, from.data, bytes_of(from).size());
  };
  if (matrix.periods > 0) {
    copy(left(matrix, 0, matrix.periods), left(grown, 0, matrix.periods));
    copy(right(matrix, 0, matrix.periods), right(grown, 0, matrix.periods));
  }
  const auto scale = static_cast<float>(1 / std::sqrt(static_cast<double>(shape_.noise.rank)));
  for (std::uint64_t period = matrix.periods; period < periods; ++period) {
    const std::uint64_t number = base_step_ / shape_.noise.period_steps + period;
    const PendingUpdate drawn{{shape_.run_seed, number, tensor, kRightFactorPurpose}, scale};
    const std::span<std::byte> v = bytes_of(right(grown, period, 1));
    materialise(v, DType::kF32, v, DType::kF32, {.family = family_, .pending = {&drawn, 1}},
                Rounding::kNearest, {}, compute);
  }
  matrix = std::move(grown);
}

}  // namespace sluiceway
