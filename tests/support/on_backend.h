// Every kernel in the form that a test calls: on the backend of the running test, with views of
// host memory.
//
// Each function here calls the one of the same name in kernels/, which chooses by the stream;
// results that it would leave in device memory are returned. On the CPU the kernel gets the views
// unchanged; for a device their memory is copied there (placement.h) and back when the call has
// returned or thrown.
#pragma once

#include "kernels/adam.h"
#include "kernels/bias_norm.h"
#include "kernels/compress.h"
#include "kernels/compress_linear.h"
#include "kernels/decompress.h"
#include "kernels/factored_adam.h"
#include "kernels/factored_moment.h"
#include "kernels/gradient_copy.h"
#include "kernels/low_rank.h"
#include "kernels/noise.h"
#include "kernels/overflow_scan.h"
#include "kernels/perturb.h"
#include "kernels/philox.h"
#include "kernels/residual.h"
#include "kernels/residual_form.h"
#include "kernels/wire.h"
#include "tests/support/backend.h"
#include "tests/support/placement.h"

namespace sluiceway::test::on_backend {

// Calls kernel(args..., stream), on device memory unless `in_place`.
template <typename Kernel, typename... Args>
void run(DeviceId device, bool in_place, const Kernel& kernel, const Args&... args) {
  if (in_place) return kernel(args..., StreamRef::host());
  Placement placement(device);
  (placement.add(args), ...);
  placement.copy_in();
  try {
    run_on_stream(device, [&](StreamRef stream) { kernel(placement.placed(args)..., stream); });
  } catch (...) {
    placement.finish();
    throw;
  }
  placement.finish();
}

template <typename Kernel, typename... Args>
void call(const Kernel& kernel, const Args&... args) {
  const DeviceId device = current_device();
  run(device, device.is_host(), kernel, args...);
}

// The same for a kernel whose first argument receives its result.
template <typename Result, typename Kernel, typename... Args>
Result measure(const Kernel& kernel, const Args&... args) {
  Result result{};
  call(kernel, &result, args...);
  return result;
}

// ---- adam.h, factored_adam.h --------------------------------------------------------------------

template <typename G, typename D>
void adam_direction(std::span<const G> g, float grad_scale, const AdamMoments& moments,
                    const AdamHyper& hyper, std::span<D> d) {
  call([](auto... a) { sluiceway::adam_direction<G, D>(a...); }, g, grad_scale, moments, hyper, d);
}

template <typename G, typename Weight>
void adam_step(std::span<const G> g, float grad_scale, const AdamMoments& moments,
               const AdamHyper& hyper, const Weight& w) {
  call([](auto... a) { sluiceway::adam_step<G, Weight>(a...); }, g, grad_scale, moments, hyper, w);
}

template <typename T>
void factored_adam_direction(MatrixView<const T> g, float grad_scale, MatrixView<const float> m_in,
                             MatrixView<float> m_out, const FactoredRoots& roots,
                             const AdamHyper& hyper, MatrixView<T> d) {
  call([](auto... a) { sluiceway::factored_adam_direction<T>(a...); }, g, grad_scale, m_in, m_out,
       roots, hyper, d);
}

// ---- compress.h, compress_linear.h, decompress.h and others: both kinds of projectors -----------

inline void compress(MatrixView<float> s, float beta, const AnyMatrix& g) {
  call([](auto... a) { sluiceway::compress(a...); }, s, beta, g);
}
template <typename P, typename Q>
void compress(MatrixView<float> s, float beta, const AnyMatrix& g, const P& p, const Q& q,
              std::span<float> scratch) {
  call([](auto... a) { sluiceway::compress(a...); }, s, beta, g, p, q, scratch);
}

template <typename P>
void project_rows(const AnyMatrix& w, const AnyMatrix& g, const P& p, std::span<float> scratch) {
  call([](auto... a) { sluiceway::project_rows(a...); }, w, g, p, scratch);
}

template <typename P, typename Q>
void decompress(const AnyMatrix& w, MatrixView<std::uint16_t> low, const AnyMatrix& d, const P& p,
                const Q& q, const WeightUpdate& update, std::span<float> scratch) {
  call([](auto... a) { sluiceway::decompress(a...); }, w, low, d, p, q, update, scratch);
}
inline void decompress(const AnyMatrix& w, MatrixView<std::uint16_t> low, const AnyMatrix& d,
                       const WeightUpdate& update) {
  call([](auto... a) { sluiceway::decompress(a...); }, w, low, d, update);
}

inline BiasNorm bias_norm(const AnyMatrix& g, const SparseRows& p, const SparseRows& q,
                          const SparseColumns& q_columns, std::span<float> scratch) {
  return measure<BiasNorm>([](auto... a) { sluiceway::bias_norm(a...); }, g, p, q, q_columns,
                           scratch);
}
inline BiasNorm bias_norm(const AnyMatrix& g, const BlockRows& p, const BlockRows& q,
                          std::span<float> scratch) {
  return measure<BiasNorm>([](auto... a) { sluiceway::bias_norm(a...); }, g, p, q, scratch);
}

template <typename Rows>
void residual_form(const AnyMatrix& g, MatrixView<float> s, const Rows& p, const Rows& q,
                   const MeansPass& pass, std::span<float> scratch) {
  call([](auto... a) { sluiceway::residual_form(a...); }, g, s, p, q, pass, scratch);
}

// ---- residual.h ---------------------------------------------------------------------------------

inline void mean_squares(const AnyMatrix& r, const MeansPass& pass, float scale = 1.0F) {
  call([](auto... a) { sluiceway::mean_squares(a...); }, r, pass, scale);
}
inline void residual_clip(ResidualVerdict& verdict, const AnyMatrix& r, const FactoredRoots& roots,
                          double lr, double max_rms) {
  call([](auto... a) { sluiceway::residual_clip(a...); }, &verdict, r, roots, lr, max_rms);
}
// Uses all of `update`, alpha too, if no verdict is given.
inline void residual_apply(const AnyMatrix& w, MatrixView<std::uint16_t> low, const AnyMatrix& r,
                           const FactoredRoots& roots, const WeightUpdate& update,
                           const ResidualVerdict& verdict) {
  call([](auto... a) { sluiceway::residual_apply(a...); }, w, low, r, roots, update, &verdict);
}
inline void residual_apply(const AnyMatrix& w, MatrixView<std::uint16_t> low, const AnyMatrix& r,
                           const FactoredRoots& roots, const WeightUpdate& update) {
  residual_apply(w, low, r, roots, update, {.alpha = update.alpha, .trains = true});
}
inline void residual_sign(const AnyMatrix& w, MatrixView<std::uint16_t> low, const AnyMatrix& r,
                          const WeightUpdate& update, const ResidualVerdict& verdict) {
  call([](auto... a) { sluiceway::residual_sign(a...); }, w, low, r, update, &verdict);
}
inline void residual_sign(const AnyMatrix& w, MatrixView<std::uint16_t> low, const AnyMatrix& r,
                          const WeightUpdate& update) {
  residual_sign(w, low, r, update, {.alpha = update.alpha, .trains = true});
}

// ---- overflow_scan.h, gradient_copy.h, philox.h, noise.h, perturb.h, low_rank.h, wire.h ---------

template <typename T>
ScanResult overflow_scan(std::span<const T> x) {
  ScanResult result;
  call([](auto... a) { sluiceway::overflow_scan<T>(a...); }, x, &result);
  return result;
}
inline ScanResult overflow_scan(const AnyMatrix& x) {
  ScanResult result;
  call([](auto... a) { sluiceway::overflow_scan(a...); }, x, &result);
  return result;
}
template <typename Dst>
ScanResult overflow_scan_copy(std::span<const float> src, std::span<Dst> dst) {
  ScanResult result;
  call([](auto... a) { sluiceway::overflow_scan_copy<Dst>(a...); }, src, dst, &result);
  return result;
}

template <typename Src, typename Dst>
ScanResult gradient_copy(std::span<const Src> src, std::span<Dst> dst) {
  ScanResult result;
  call([](auto... a) { sluiceway::gradient_copy<Src, Dst>(a...); }, src, dst, &result);
  return result;
}
inline ScanResult gradient_copy(std::span<const std::byte> src, DType src_dtype,
                                std::span<std::byte> dst, DType dst_dtype) {
  ScanResult result;
  call([](auto... a) { sluiceway::gradient_copy(a...); }, src, src_dtype, dst, dst_dtype, &result);
  return result;
}

template <typename Word>
void fill_bits(const NoiseKey& key, std::uint64_t first, std::span<Word> out) {
  call([](auto... a) { sluiceway::fill_bits(a...); }, key, first, out);
}

inline void draw_noise(std::span<float> out, const NoiseKey& key, std::uint64_t first,
                       NoiseFamily family) {
  call([](auto... a) { sluiceway::draw_noise(a...); }, out, key, first, family);
}
inline void perturb(std::span<const std::byte> w, WeightForm w_form, std::span<std::byte> plus,
                    std::span<std::byte> minus, DType out_dtype, const Theta& theta,
                    const NoiseKey& key, float eps) {
  call([](auto... a) { sluiceway::perturb(a...); }, w, w_form, plus, minus, out_dtype, theta, key,
       eps);
}
inline void materialise(std::span<const std::byte> w, WeightForm w_form, std::span<std::byte> out,
                        DType out_dtype, const Theta& theta, Rounding rounding = Rounding::kNearest,
                        const NoiseKey& rounding_key = {}) {
  call([](auto... a) { sluiceway::materialise(a...); }, w, w_form, out, out_dtype, theta, rounding,
       rounding_key);
}

inline void perturb_low_rank(const AnyMatrix& w, const AnyMatrix& plus, const AnyMatrix& minus,
                             const LowRank& pending, float gamma, const LowRank& direction,
                             float eps) {
  call([](auto... a) { sluiceway::perturb_low_rank(a...); }, w, plus, minus, pending, gamma,
       direction, eps);
}
inline void materialise_low_rank(const AnyMatrix& w, const AnyMatrix& out, const LowRank& pending,
                                 float gamma, Rounding rounding = Rounding::kNearest,
                                 const NoiseKey& rounding_key = {}, std::uint64_t first = 0) {
  call([](auto... a) { sluiceway::materialise_low_rank(a...); }, w, out, pending, gamma, rounding,
       rounding_key, first);
}

inline ScanResult pack(WireFormat format, std::span<const float> values,
                       std::span<std::byte> wire) {
  ScanResult result;
  call([](auto... a) { sluiceway::pack(a...); }, format, values, wire, &result);
  return result;
}
inline void unpack(WireFormat format, std::span<const std::byte> wire, std::span<float> values) {
  call([](auto... a) { sluiceway::unpack(a...); }, format, wire, values);
}

}  // namespace sluiceway::test::on_backend
