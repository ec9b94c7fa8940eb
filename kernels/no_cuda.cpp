// Every CUDA half of kernels/ in a build without CUDA: a call that needs a card throws Unavailable.
#include "kernels/adam.h"
#include "kernels/base/check.h"
#include "kernels/bias_norm.h"
#include "kernels/compress.h"
#include "kernels/compress_linear.h"
#include "kernels/cuda/load_kernels.h"
#include "kernels/cuda/prepare_stream.h"
#include "kernels/decompress.h"
#include "kernels/factored_adam.h"
#include "kernels/gradient_copy.h"
#include "kernels/low_rank.h"
#include "kernels/noise.h"
#include "kernels/overflow_scan.h"
#include "kernels/perturb.h"
#include "kernels/philox.h"
#include "kernels/residual.h"
#include "kernels/residual_form.h"
#include "kernels/wire.h"

namespace sluiceway::cuda {
namespace {

[[noreturn]] void throw_no_cuda(const char* function) {
  throw Unavailable(concat(function,
                           ": this build has no CUDA, expected a build with SLUICEWAY_CUDA=ON; "
                           "use the host device"));
}

}  // namespace

// adam.h

template <typename G, typename D>
void adam_direction(std::span<const G>, float, const AdamMoments&, const AdamHyper&, std::span<D>,
                    StreamRef) {
  throw_no_cuda("adam_direction");
}

template <typename G, typename Weight>
void adam_step(std::span<const G>, float, const AdamMoments&, const AdamHyper&, const Weight&,
               StreamRef) {
  throw_no_cuda("adam_step");
}

#define SLUICEWAY_INSTANTIATE(G)                                                                \
  template void adam_direction(std::span<const G>, float, const AdamMoments&, const AdamHyper&, \
                               std::span<float>, StreamRef);                                    \
  template void adam_direction(std::span<const G>, float, const AdamMoments&, const AdamHyper&, \
                               std::span<bf16>, StreamRef);                                     \
  template void adam_step(std::span<const G>, float, const AdamMoments&, const AdamHyper&,      \
                          const MasterWeight&, StreamRef);                                      \
  template void adam_step(std::span<const G>, float, const AdamMoments&, const AdamHyper&,      \
                          const MasterAndCopy<f16>&, StreamRef);                                \
  template void adam_step(std::span<const G>, float, const AdamMoments&, const AdamHyper&,      \
                          const MasterAndCopy<bf16>&, StreamRef);                               \
  template void adam_step(std::span<const G>, float, const AdamMoments&, const AdamHyper&,      \
                          const StochasticWeight&, StreamRef);                                  \
  template void adam_step(std::span<const G>, float, const AdamMoments&, const AdamHyper&,      \
                          const HiLoWeight&, StreamRef)

SLUICEWAY_INSTANTIATE(float);
SLUICEWAY_INSTANTIATE(f16);
SLUICEWAY_INSTANTIATE(bf16);
#undef SLUICEWAY_INSTANTIATE

// bias_norm.h

void bias_norm(BiasNorm*, const AnyMatrix&, const SparseRows&, const SparseRows&,
               const SparseColumns&, std::span<float>, StreamRef) {
  throw_no_cuda("bias_norm");
}

void bias_norm(BiasNorm*, const AnyMatrix&, const BlockRows&, const BlockRows&, std::span<float>,
               StreamRef) {
  throw_no_cuda("bias_norm");
}

// compress.h

void prepare_products(const SparseRows&, const SparseRows&, DeviceId) {
  throw_no_cuda("prepare_products");
}

void prepare_products(const BlockRows&, const BlockRows&, DeviceId) {
  throw_no_cuda("prepare_products");
}

void compress(MatrixView<float>, float, const AnyMatrix&, const SparseRows&, const SparseColumns&,
              std::span<float>, StreamRef) {
  throw_no_cuda("compress");
}

void compress(MatrixView<float>, float, const AnyMatrix&, const BlockRows&, const BlockRows&,
              std::span<float>, StreamRef) {
  throw_no_cuda("compress");
}

void compress(MatrixView<float>, float, const AnyMatrix&, StreamRef) { throw_no_cuda("compress"); }

// compress_linear.h

void project_rows(const AnyMatrix&, const AnyMatrix&, const SparseRows&, std::span<float>,
                  StreamRef) {
  throw_no_cuda("project_rows");
}

void project_rows(const AnyMatrix&, const AnyMatrix&, const BlockRows&, std::span<float>,
                  StreamRef) {
  throw_no_cuda("project_rows");
}

// decompress.h

void decompress(const AnyMatrix&, MatrixView<std::uint16_t>, const AnyMatrix&, const SparseRows&,
                const SparseRows&, const WeightUpdate&, std::span<float>, StreamRef) {
  throw_no_cuda("decompress");
}

void decompress(const AnyMatrix&, MatrixView<std::uint16_t>, const AnyMatrix&, const BlockRows&,
                const BlockRows&, const WeightUpdate&, std::span<float>, StreamRef) {
  throw_no_cuda("decompress");
}

void decompress(const AnyMatrix&, MatrixView<std::uint16_t>, const AnyMatrix&, const WeightUpdate&,
                StreamRef) {
  throw_no_cuda("decompress");
}

// factored_adam.h

template <typename T>
void factored_adam_direction(MatrixView<const T>, float, MatrixView<const float>, MatrixView<float>,
                             const FactoredRoots&, const AdamHyper&, MatrixView<T>, StreamRef) {
  throw_no_cuda("factored_adam_direction");
}

template void factored_adam_direction(MatrixView<const float>, float, MatrixView<const float>,
                                      MatrixView<float>, const FactoredRoots&, const AdamHyper&,
                                      MatrixView<float>, StreamRef);
template void factored_adam_direction(MatrixView<const bf16>, float, MatrixView<const float>,
                                      MatrixView<float>, const FactoredRoots&, const AdamHyper&,
                                      MatrixView<bf16>, StreamRef);

// gradient_copy.h

template <typename Src, typename Dst>
void gradient_copy(std::span<const Src>, std::span<Dst>, ScanResult*, StreamRef) {
  throw_no_cuda("gradient_copy");
}

void gradient_copy(std::span<const std::byte>, DType, std::span<std::byte>, DType, ScanResult*,
                   StreamRef) {
  throw_no_cuda("gradient_copy");
}

template void gradient_copy(std::span<const float>, std::span<float>, ScanResult*, StreamRef);
template void gradient_copy(std::span<const f16>, std::span<f16>, ScanResult*, StreamRef);
template void gradient_copy(std::span<const bf16>, std::span<bf16>, ScanResult*, StreamRef);
template void gradient_copy(std::span<const float>, std::span<f16>, ScanResult*, StreamRef);
template void gradient_copy(std::span<const float>, std::span<bf16>, ScanResult*, StreamRef);

// low_rank.h

void perturb_low_rank(const AnyMatrix&, const AnyMatrix&, const AnyMatrix&, const LowRank&, float,
                      const LowRank&, float, StreamRef) {
  throw_no_cuda("perturb_low_rank");
}

void materialise_low_rank(const AnyMatrix&, const AnyMatrix&, const LowRank&, float, Rounding,
                          const NoiseKey&, std::uint64_t, StreamRef) {
  throw_no_cuda("materialise_low_rank");
}

// noise.h

void draw_noise(std::span<float>, const NoiseKey&, std::uint64_t, NoiseFamily, StreamRef) {
  throw_no_cuda("draw_noise");
}

// overflow_scan.h

template <typename T>
void overflow_scan(std::span<const T>, ScanResult*, StreamRef) {
  throw_no_cuda("overflow_scan");
}

template <typename Dst>
void overflow_scan_copy(std::span<const float>, std::span<Dst>, ScanResult*, StreamRef) {
  throw_no_cuda("overflow_scan_copy");
}

void overflow_scan(const AnyMatrix&, ScanResult*, StreamRef) { throw_no_cuda("overflow_scan"); }

template void overflow_scan(std::span<const float>, ScanResult*, StreamRef);
template void overflow_scan(std::span<const f16>, ScanResult*, StreamRef);
template void overflow_scan(std::span<const bf16>, ScanResult*, StreamRef);
template void overflow_scan_copy(std::span<const float>, std::span<float>, ScanResult*, StreamRef);
template void overflow_scan_copy(std::span<const float>, std::span<f16>, ScanResult*, StreamRef);
template void overflow_scan_copy(std::span<const float>, std::span<bf16>, ScanResult*, StreamRef);

// perturb.h

void perturb(std::span<const std::byte>, WeightForm, std::span<std::byte>, std::span<std::byte>,
             DType, const Theta&, const NoiseKey&, float, StreamRef) {
  throw_no_cuda("perturb");
}

void materialise(std::span<const std::byte>, WeightForm, std::span<std::byte>, DType, const Theta&,
                 Rounding, const NoiseKey&, StreamRef) {
  throw_no_cuda("materialise");
}

// philox.h

void fill_bits(const NoiseKey&, std::uint64_t, std::span<std::uint32_t>, StreamRef) {
  throw_no_cuda("fill_bits");
}

void fill_bits(const NoiseKey&, std::uint64_t, std::span<std::uint16_t>, StreamRef) {
  throw_no_cuda("fill_bits");
}

// residual.h

void mean_squares(const AnyMatrix&, const MeansPass&, float, StreamRef) {
  throw_no_cuda("mean_squares");
}

void residual_clip(ResidualVerdict*, const AnyMatrix&, const FactoredRoots&, double, double,
                   StreamRef) {
  throw_no_cuda("residual_clip");
}

void residual_apply(const AnyMatrix&, MatrixView<std::uint16_t>, const AnyMatrix&,
                    const FactoredRoots&, const WeightUpdate&, const ResidualVerdict*, StreamRef) {
  throw_no_cuda("residual_apply");
}

void residual_sign(const AnyMatrix&, MatrixView<std::uint16_t>, const AnyMatrix&,
                   const WeightUpdate&, const ResidualVerdict*, StreamRef) {
  throw_no_cuda("residual_sign");
}

// residual_form.h

void residual_form(const AnyMatrix&, MatrixView<float>, const SparseRows&, const SparseRows&,
                   const MeansPass&, std::span<float>, StreamRef) {
  throw_no_cuda("residual_form");
}
void residual_form(const AnyMatrix&, MatrixView<float>, const BlockRows&, const BlockRows&,
                   const MeansPass&, std::span<float>, StreamRef) {
  throw_no_cuda("residual_form");
}

// wire.h

void pack(WireFormat, std::span<const float>, std::span<std::byte>, ScanResult*, StreamRef) {
  throw_no_cuda("pack");
}

void unpack(WireFormat, std::span<const std::byte>, std::span<float>, StreamRef) {
  throw_no_cuda("unpack");
}

// cuda/load_kernels.h

std::size_t load_kernels(DeviceId device) {
  if (device.is_host()) return 0;
  throw_no_cuda("load_kernels");
}

// cuda/prepare_stream.h

void prepare_stream(StreamRef stream) {
  if (!stream.is_host()) throw_no_cuda("prepare_stream");
}

}  // namespace sluiceway::cuda
