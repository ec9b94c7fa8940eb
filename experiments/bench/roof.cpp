#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "experiments/bench/roof.cpp"
#include <hwy/foreach_target.h>
// foreach_target.h comes first: it includes this file once for each instruction set.
#include <hwy/aligned_allocator.h>
#include <hwy/highway.h>

#include <cstddef>
#include <ctime>

#include "experiments/bench/roof.h"

HWY_BEFORE_NAMESPACE();
namespace sluiceway::bench {
namespace HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

float read_all(const float* a, std::size_t n) {
  const hn::ScalableTag<float> d;
  const std::size_t lanes = hn::Lanes(d);
  auto s0 = hn::Zero(d), s1 = s0, s2 = s0, s3 = s0;
  for (std::size_t i = 0; i + 4 * lanes <= n; i += 4 * lanes) {
    s0 = hn::Add(s0, hn::Load(d, a + i));
    s1 = hn::Add(s1, hn::Load(d, a + i + lanes));
    s2 = hn::Add(s2, hn::Load(d, a + i + 2 * lanes));
    s3 = hn::Add(s3, hn::Load(d, a + i + 3 * lanes));
  }
  return hn::GetLane(hn::SumOfLanes(d, hn::Add(hn::Add(s0, s1), hn::Add(s2, s3))));
}

void copy_all(const float* HWY_RESTRICT a, float* HWY_RESTRICT b, std::size_t n) {
  const hn::ScalableTag<float> d;
  const std::size_t lanes = hn::Lanes(d);
  for (std::size_t i = 0; i + 2 * lanes <= n; i += 2 * lanes) {
    hn::Store(hn::Load(d, a + i), d, b + i);
    hn::Store(hn::Load(d, a + i + lanes), d, b + i + lanes);
  }
}

void triad_all(const float* HWY_RESTRICT a, const float* HWY_RESTRICT b, float* HWY_RESTRICT c,
               std::size_t n) {
  const hn::ScalableTag<float> d;
  const auto s = hn::Set(d, 0.5F);
  for (std::size_t i = 0; i + hn::Lanes(d) <= n; i += hn::Lanes(d)) {
    hn::Store(hn::MulAdd(s, hn::Load(d, b + i), hn::Load(d, a + i)), d, c + i);
  }
}

// Copies past the cache, so that no line is fetched before it is overwritten.
void copy_streamed(const float* HWY_RESTRICT a, float* HWY_RESTRICT b, std::size_t n) {
  const hn::ScalableTag<float> d;
  for (std::size_t i = 0; i + hn::Lanes(d) <= n; i += hn::Lanes(d)) {
    hn::Stream(hn::Load(d, a + i), d, b + i);
  }
}

void triad_streamed(const float* HWY_RESTRICT a, const float* HWY_RESTRICT b, float* HWY_RESTRICT c,
                    std::size_t n) {
  const hn::ScalableTag<float> d;
  const auto s = hn::Set(d, 0.5F);
  for (std::size_t i = 0; i + hn::Lanes(d) <= n; i += hn::Lanes(d)) {
    hn::Stream(hn::MulAdd(s, hn::Load(d, b + i), hn::Load(d, a + i)), d, c + i);
  }
}

// The traffic of AdamW with hardly any arithmetic; two vectors of each array are read before one is
// written, which is a little faster than one by one.
void adam_all(const float* HWY_RESTRICT g, float* HWY_RESTRICT m, float* HWY_RESTRICT v,
              float* HWY_RESTRICT w, std::size_t n) {
  const hn::ScalableTag<float> d;
  const std::size_t lanes = hn::Lanes(d);
  for (std::size_t i = 0, j = lanes; j + lanes <= n; i += 2 * lanes, j += 2 * lanes) {
    const auto g0 = hn::Load(d, g + i), g1 = hn::Load(d, g + j);
    const auto m0 = hn::Sub(g0, hn::Load(d, m + i)), m1 = hn::Sub(g1, hn::Load(d, m + j));
    const auto v0 = hn::Sub(g0, hn::Load(d, v + i)), v1 = hn::Sub(g1, hn::Load(d, v + j));
    const auto w0 = hn::Sub(g0, hn::Load(d, w + i)), w1 = hn::Sub(g1, hn::Load(d, w + j));
    hn::Store(m0, d, m + i);
    hn::Store(m1, d, m + j);
    hn::Store(v0, d, v + i);
    hn::Store(v1, d, v + j);
    hn::Store(w0, d, w + i);
    hn::Store(w1, d, w + j);
  }
}

void update_all(float* a, std::size_t n) {
  const hn::ScalableTag<float> d;
  const std::size_t lanes = hn::Lanes(d);
  const auto s = hn::Set(d, -1.0F);
  for (std::size_t i = 0; i + 2 * lanes <= n; i += 2 * lanes) {
    hn::Store(hn::Mul(s, hn::Load(d, a + i)), d, a + i);
    hn::Store(hn::Mul(s, hn::Load(d, a + i + lanes)), d, a + i + lanes);
  }
}

// Ten independent sums; returns the flop done, and a value that keeps them alive in *out.
double fma_all(std::size_t rounds, float* out) {
  const hn::ScalableTag<float> d;
  const auto x = hn::Set(d, 0.999F), y = hn::Set(d, 0.001F);
  auto s0 = hn::Zero(d), s1 = s0, s2 = s0, s3 = s0, s4 = s0, s5 = s0, s6 = s0, s7 = s0, s8 = s0,
       s9 = s0;
  for (std::size_t i = 0; i < rounds; ++i) {
    s0 = hn::MulAdd(s0, x, y);
    s1 = hn::MulAdd(s1, x, y);
    s2 = hn::MulAdd(s2, x, y);
    s3 = hn::MulAdd(s3, x, y);
    s4 = hn::MulAdd(s4, x, y);
    s5 = hn::MulAdd(s5, x, y);
    s6 = hn::MulAdd(s6, x, y);
    s7 = hn::MulAdd(s7, x, y);
    s8 = hn::MulAdd(s8, x, y);
    s9 = hn::MulAdd(s9, x, y);
  }
  const auto sum = hn::Add(hn::Add(hn::Add(s0, s1), hn::Add(s2, s3)),
                           hn::Add(hn::Add(s4, s5), hn::Add(hn::Add(s6, s7), hn::Add(s8, s9))));
  *out = hn::GetLane(hn::SumOfLanes(d, sum));
  return static_cast<double>(rounds) * 20.0 * static_cast<double>(hn::Lanes(d));
}

}  // namespace HWY_NAMESPACE
}  // namespace sluiceway::bench
HWY_AFTER_NAMESPACE();

#if HWY_ONCE

namespace sluiceway::bench {
namespace {

HWY_EXPORT(read_all);
HWY_EXPORT(copy_all);
HWY_EXPORT(copy_streamed);
HWY_EXPORT(triad_all);
HWY_EXPORT(triad_streamed);
HWY_EXPORT(adam_all);
HWY_EXPORT(update_all);
HWY_EXPORT(fma_all);

constexpr std::size_t kElems = std::size_t{16} << 20;  // 64 MiB.
constexpr double kBytes = 4.0 * kElems;

volatile float keep_alive = 0;

template <typename F>
double seconds(const F& f) {
  const double start = thread_seconds();
  f();
  return thread_seconds() - start;
}

class RoofBench {
 public:
  RoofBench()
      : a_(hwy::AllocateAligned<float>(kElems)),
        b_(hwy::AllocateAligned<float>(kElems)),
        c_(hwy::AllocateAligned<float>(kElems)),
        d_(hwy::AllocateAligned<float>(kElems)) {
    for (auto* array : {&a_, &b_, &c_, &d_}) std::fill_n(array->get(), kElems, 1.0F);
    for (int round = 0; round < 5; ++round) measure();
  }

  void measure() {
    for (const auto which : {&Roof::read_gb_per_s, &Roof::copy_gb_per_s, &Roof::triad_gb_per_s,
                             &Roof::adam_gb_per_s, &Roof::update_gb_per_s, &Roof::gflop_per_s}) {
      roof_.*which = std::max(roof_.*which, once(which));
    }
  }

  double once(double Roof::*which) {
    if (which == &Roof::read_gb_per_s) return read();
    if (which == &Roof::copy_gb_per_s) return copy();
    if (which == &Roof::triad_gb_per_s) return triad();
    if (which == &Roof::adam_gb_per_s) return adam();
    if (which == &Roof::update_gb_per_s) return update();
    return multiply_add();
  }

  const Roof& result() const { return roof_; }

 private:
  double read() {
    const auto pass = [&] { keep_alive = HWY_DYNAMIC_DISPATCH(read_all)(a_.get(), kElems); };
    return kBytes / seconds(pass) / 1e9;
  }

  double copy() {
    const auto cached = [&] { HWY_DYNAMIC_DISPATCH(copy_all)(a_.get(), b_.get(), kElems); };
    const auto streamed = [&] { HWY_DYNAMIC_DISPATCH(copy_streamed)(a_.get(), b_.get(), kElems); };
    return 2 * kBytes / std::min(seconds(cached), seconds(streamed)) / 1e9;
  }

  double triad() {
    const auto cached = [&] {
      HWY_DYNAMIC_DISPATCH(triad_all)(a_.get(), b_.get(), c_.get(), kElems);
    };
    const auto streamed = [&] {
      HWY_DYNAMIC_DISPATCH(triad_streamed)(a_.get(), b_.get(), c_.get(), kElems);
    };
    return 3 * kBytes / std::min(seconds(cached), seconds(streamed)) / 1e9;
  }

  double adam() {
    const auto pass = [&] {
      HWY_DYNAMIC_DISPATCH(adam_all)(a_.get(), b_.get(), c_.get(), d_.get(), kElems);
    };
    return 7 * kBytes / seconds(pass) / 1e9;
  }

  double update() {
    const auto pass = [&] { HWY_DYNAMIC_DISPATCH(update_all)(a_.get(), kElems); };
    return 2 * kBytes / seconds(pass) / 1e9;
  }

  double multiply_add() {
    float sum = 0;
    double flop = 0;
    const auto pass = [&] { flop = HWY_DYNAMIC_DISPATCH(fma_all)(std::size_t{1} << 20, &sum); };
    const double s = seconds(pass);
    keep_alive = sum;
    return flop / s / 1e9;
  }

  Roof roof_;
  hwy::AlignedFreeUniquePtr<float[]> a_, b_, c_, d_;
};

RoofBench& shared_bench() {
  static RoofBench bench;
  return bench;
}

}  // namespace

double thread_seconds() {
  timespec now{};
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
  return static_cast<double>(now.tv_sec) + 1e-9 * static_cast<double>(now.tv_nsec);
}

const Roof& roof(bool again) {
  if (again) shared_bench().measure();
  return shared_bench().result();
}

double roof_now(double Roof::*which) { return shared_bench().once(which); }

}  // namespace sluiceway::bench

#endif  // HWY_ONCE
