#include "tests/support/offload_reference.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <optional>

#include "kernels/base/check.h"
#include "tests/support/rng.h"

namespace sluiceway::test {
namespace {

std::size_t count_of(const TensorSpec& spec) { return static_cast<std::size_t>(spec.elems()); }

// The gradient as it is on the device.
std::vector<float> gradient(const TensorSpec& spec, int tensor, std::int64_t step, int batch) {
  Rng rng(static_cast<std::uint64_t>(10000 * step + 100 * tensor + batch));
  std::vector<float> g = rng.vector(spec.elems(), 0.1);
  if (spec.dtype == DType::kBF16) {
    for (float& x : g) x = to_float(from_float<bf16>(x));
  }
  return g;
}

std::vector<std::byte> stored(const std::vector<float>& values, DType dtype) {
  std::vector<std::byte> bytes(values.size() * size_bytes(dtype));
  if (dtype == DType::kF32) {
    std::memcpy(bytes.data(), values.data(), bytes.size());
  } else {
    auto* const out = reinterpret_cast<bf16*>(bytes.data());
    std::ranges::transform(values, out, [](float x) { return from_float<bf16>(x); });
  }
  return bytes;
}

// Returns the sum of the kept gradients, or nothing if no micro-batch has one.
std::optional<std::vector<float>> sum_of(const TensorSpec& spec, int tensor, std::int64_t step,
                                         int batches, const HasGradient& has) {
  std::optional<std::vector<float>> sum;
  for (int batch = 0; batch < batches; ++batch) {
    if (has && !has(tensor, batch)) continue;
    std::vector<float> g = gradient(spec, tensor, step, batch);
    for (float& x : g) x = to_float(from_float<bf16>(x));
    if (sum) {
      for (std::size_t i = 0; i < g.size(); ++i) (*sum)[i] += g[i];
    } else {
      sum = std::move(g);
    }
  }
  return sum;
}

TensorHyper hyper_of(int tensor) {
  return {1e-2 / (1 + tensor), 0.9, 0.99, 1e-8, tensor % 2 == 0 ? 0.1 : 0.0};
}

}  // namespace

std::vector<TensorSpec> mixed_specs() {
  return {{"embedding", {100, 123}, DType::kBF16},
          {"norm1", {64}, DType::kF32},
          {"bias1", {1}, DType::kBF16},
          {"query", {64, 64}, DType::kBF16},
          {"norm2", {300}, DType::kF32},
          {"key", {64, 33}, DType::kBF16},
          {"head", {7, 301}, DType::kBF16},
          {"tiny", {3}, DType::kBF16}};
}

OffloadOptions small_chunk_options(const std::vector<std::string>& drives, IoChoice io) {
  OffloadOptions options(DeviceId::host());
  options.lanes.limits.fill(Budget::kUnlimited);
  options.chunk_elems = 2 * ChunkPlan::kStoredAlignment;
  options.store.drives = drives;
  options.store.io = io;
  options.host_threads = 2;
  return options;
}

OffloadModel::OffloadModel(const std::vector<TensorSpec>& specs, std::uint64_t seed)
    : specs_(specs) {
  Rng rng(seed);
  for (const TensorSpec& spec : specs) {
    weights_.push_back(stored(rng.vector(spec.elems()), spec.dtype));
  }
}

std::vector<AnyMatrix> OffloadModel::tensors() {
  std::vector<AnyMatrix> views;
  for (std::size_t i = 0; i < specs_.size(); ++i) {
    const std::int64_t elems = specs_[i].elems();
    views.push_back({weights_[i].data(), 1, elems, elems, specs_[i].dtype});
  }
  return views;
}

std::string difference(const OffloadModel& found, const OffloadModel& expected) {
  for (int t = 0; t < found.size(); ++t) {
    if (found.bytes(t) != expected.bytes(t)) return found.spec(t).name;
  }
  return "";
}

OffloadGradients::OffloadGradients(const OffloadModel& model, std::int64_t step, int batch)
    : given_(static_cast<std::size_t>(model.size())) {
  for (int t = 0; t < model.size(); ++t) {
    const TensorSpec& spec = model.spec(t);
    dtypes_.push_back(spec.dtype);
    bytes_.push_back(std::make_shared<std::vector<std::byte>>(
        stored(gradient(spec, t, step, batch), spec.dtype)));
  }
}

void OffloadGradients::add_to(OffloadEngine& engine, int tensor) {
  const auto t = static_cast<std::size_t>(tensor);
  std::shared_ptr<std::vector<std::byte>> keep = std::move(bytes_[t]);
  given_[t] = keep;
  const auto elems = static_cast<std::int64_t>(keep->size() / size_bytes(dtypes_[t]));
  const AnyMatrix view{keep->data(), 1, elems, elems, dtypes_[t]};
  engine.add_gradient(tensor, view, keep, StreamRef::host());
}

void OffloadGradients::poison(int tensor, float value) {
  const auto t = static_cast<std::size_t>(tensor);
  const std::vector<std::byte> one = stored({value}, dtypes_[t]);
  std::ranges::copy(one, bytes_[t]->end() - std::ssize(one));
}

int OffloadGradients::held() const {
  return static_cast<int>(
      std::ranges::count_if(given_, [](const auto& given) { return !given.expired(); }));
}

OffloadRequest request_of(OffloadModel& model) {
  static std::vector<TensorHyper> hyper;
  static std::vector<AnyMatrix> tensors;
  hyper.clear();
  for (int t = 0; t < model.size(); ++t) hyper.push_back(hyper_of(t));
  tensors = model.tensors();
  OffloadRequest request;
  request.hyper = hyper;
  request.tensors = tensors;
  request.factor = kStepFactor;
  return request;
}

StepOutcome run_step(OffloadEngine& engine, OffloadModel& model, std::int64_t step, int batches,
                     const HasGradient& has) {
  const OffloadRequest request = request_of(model);
  engine.expect(request.hyper, request.factor);
  for (int batch = 0; batch < batches; ++batch) {
    OffloadGradients gradients(model, step, batch);
    for (int t = model.size(); t-- > 0;) {  // In the order in which a backward gives them.
      if (!has || has(t, batch)) gradients.add_to(engine, t);
    }
    engine.end_backward();
  }
  return engine.step(request);
}

std::string state_difference(OffloadEngine& found, OffloadEngine& expected) {
  for (int t = 0; t < static_cast<int>(found.size()); ++t) {
    const std::size_t count = count_of(found.tensor(t));
    std::vector<std::vector<float>> one(3, std::vector<float>(count)), other = one;
    found.read_state(t, {one[0], one[1], one[2]});
    expected.read_state(t, {other[0], other[1], other[2]});
    if (one != other || found.tensor_steps(t) != expected.tensor_steps(t)) {
      return concat("states of ", found.tensor(t).name);
    }
  }
  return "";
}

OffloadReference::OffloadReference(const OffloadModel& model, StateCodec codec) : codec_(codec) {
  for (int t = 0; t < model.size(); ++t) {
    const TensorSpec& spec = model.spec(t);
    specs_.push_back(spec);
    m_.emplace_back(count_of(spec));
    v_.emplace_back(count_of(spec));
    std::vector<float> master(count_of(spec));
    const std::vector<std::byte>& bytes = model.bytes(t);
    if (spec.dtype == DType::kF32) {
      std::memcpy(master.data(), bytes.data(), bytes.size());
    } else {
      const auto* const from = reinterpret_cast<const bf16*>(bytes.data());
      std::transform(from, from + master.size(), master.begin(),
                     [](bf16 x) { return to_float(x); });
    }
    master_.push_back(std::move(master));
  }
  steps_.resize(specs_.size());
}

void OffloadReference::round(std::size_t tensor) {
  const std::size_t count = m_[tensor].size(), blocks = (count + kStateBlock - 1) / kStateBlock;
  std::vector<bf16> half(count);
  std::vector<std::uint8_t> codes(blocks * kStateBlock), low(count);
  std::vector<float> scales(blocks);
  const Blocks8 eight{codes, scales};
  std::vector<std::uint16_t> bits(codes.size());
  cpu::fill_bits({small_chunk_options().seed, static_cast<std::uint64_t>(steps_[tensor]),
                  stable_hash(specs_[tensor].name), 0x53544154},
                 0, bits);
  const std::vector<std::vector<float>*> states{&m_[tensor], &v_[tensor], &master_[tensor]};
  for (std::uint32_t i = 0; i < 3; ++i) {
    const bool is_master = i == StateForm::kMaster;
    if (is_master && specs_[tensor].dtype != DType::kBF16) continue;
    const RoundingNoise noise{bits, kNoiseMultipliers[i]};
    std::vector<float>& x = *states[i];
    if (codec_ == StateCodec::kBf16) {
      cpu::store_state(x, noise, std::span(half));
      cpu::load_state(std::span<const bf16>(half), x);
    } else if (is_master) {
      cpu::store_state(x, noise, Split24{half, low});
      cpu::load_state(Split24{half, low}, x);
    } else {
      const Companding companding = i == 0 ? Companding::kSigned : Companding::kPositive;
      cpu::store_state(x, companding, noise, eight);
      cpu::load_state(eight, companding, x);
    }
  }
}

double OffloadReference::norm(std::int64_t step, int batches) const {
  double squares = 0;
  for (std::size_t t = 0; t < specs_.size(); ++t) {
    const auto sum = sum_of(specs_[t], static_cast<int>(t), step, batches, {});
    for (const float x : *sum) squares += static_cast<double>(x) * static_cast<double>(x);
  }
  return std::sqrt(squares);
}

void OffloadReference::step(std::int64_t step, int batches, float factor, const HasGradient& has) {
  for (std::size_t t = 0; t < specs_.size(); ++t) {
    const int tensor = static_cast<int>(t);
    const auto sum = sum_of(specs_[t], tensor, step, batches, has);
    if (!sum) continue;
    const TensorHyper hyper = hyper_of(tensor);
    const AdamHyper adam{hyper.lr,  hyper.beta1,        hyper.beta2,
                         hyper.eps, hyper.weight_decay, ++steps_[t]};
    cpu::adam_step(std::span<const float>(*sum), factor, AdamMoments::in_place(m_[t], v_[t]), adam,
                   MasterWeight{master_[t], master_[t]});
    if (codec_ != StateCodec::kFp32) round(t);
  }
}

std::string OffloadReference::difference(const OffloadModel& model) const {
  for (std::size_t t = 0; t < specs_.size(); ++t) {
    if (model.bytes(static_cast<int>(t)) != stored(master_[t], specs_[t].dtype)) {
      return specs_[t].name;
    }
  }
  return "";
}

std::string OffloadReference::state_difference(OffloadEngine& engine) const {
  for (std::size_t t = 0; t < specs_.size(); ++t) {
    const std::size_t count = count_of(specs_[t]);
    std::vector<float> m(count), v(count), master(count);
    engine.read_state(static_cast<int>(t), {m, v, master});
    if (m != m_[t]) return concat("exp_avg of ", specs_[t].name);
    if (v != v_[t]) return concat("exp_avg_sq of ", specs_[t].name);
    if (master != master_[t]) return concat("master of ", specs_[t].name);
  }
  return "";
}

}  // namespace sluiceway::test
