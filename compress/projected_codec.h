// The shared part of families with projectors, whatever their storage: applying a core, the
// residual of a gradient, state, and keeping P and Q while new ones are fitted. `Projector` is one
// of compress/projector.h.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>
#include <utility>
#include <vector>

#include "compress/codec_families.h"
#include "compress/codec_state.h"
#include "compress/gradient_codec.h"
#include "compress/moment_transport.h"
#include "compress/projector.h"
#include "kernels/compress.h"
#include "kernels/compress_linear.h"
#include "kernels/decompress_range.h"
#include "kernels/residual_form.h"

namespace sluiceway {

inline std::span<const float> values_of(const BlockRows& rows) noexcept {
  return {rows.value, static_cast<std::size_t>(rows.rows * rows.kept)};
}

inline std::span<const float> values_of(const SparseRows& rows) noexcept {
  return {rows.value, static_cast<std::size_t>(rows.rows * rows.nnz)};
}

template <class Projector>
class ProjectedCodec : public GradientCodec {
 public:
  CoreShape core() const noexcept override { return {header_.dm, header_.dn}; }

  bool projects() const noexcept override { return true; }
  void project(Side side, const AnyMatrix& w, const AnyMatrix& g, std::span<float> scratch,
               StreamRef stream) const override {
    project_rows(w, g, side == Side::kRows ? projector_.p() : projector_.q(), scratch, stream);
  }
  std::size_t project_scratch_elems() const noexcept override {
    return static_cast<std::size_t>(std::max(sluiceway::project_scratch_elems(projector_.p()),
                                             sluiceway::project_scratch_elems(projector_.q())));
  }

  void apply(const AnyMatrix& w, MatrixView<std::uint16_t> low, const AnyMatrix& d,
             const WeightUpdate& update, std::span<float> scratch,
             StreamRef stream) const override {
    decompress(w, low, d, projector_.p(), projector_.q(), update, scratch, stream);
  }

  ScanResult decompress_range(const AnyMatrix& s, std::int64_t first, std::span<std::byte> dst,
                              DType dtype, std::span<float> scratch) const override {
    return cpu::decompress_range(s, projector_.p(), projector_.q(), first, dst, dtype, scratch);
  }

  void leave_residual(const AnyMatrix& g, MatrixView<float> s, const MeansPass& pass,
                      std::span<float> scratch, StreamRef stream) const override {
    residual_form(g, s, projector_.p(), projector_.q(), pass, scratch, stream);
  }

  std::vector<std::byte> save() const override {
    CodecStateHeader header = header_;
    header.generation = generation();
    if (header.value_count == 0) return write_codec_state(header, {}, {});
    return look_at(projector_, [&](const Projector& here) {
      return write_codec_state(header, values_of(here.p()), values_of(here.q()));
    });
  }
  void check(std::span<const std::byte> state) const override { read_codec_state(state, header_); }

 protected:
  // `arguments` go to the projector.
  template <class... Arguments>
  explicit ProjectedCodec(const CodecRequest& request, std::int64_t nnz_or_block,
                          Arguments&&... arguments)
      : GradientCodec(request),
        projector_(std::forward<Arguments>(arguments)...),
        header_(header_of(request, projector_.dims())) {
    header_.nnz = nnz_or_block;
    prepare_products(projector_.p(), projector_.q(), request.device);
  }

  // For a codec whose values cannot be drawn again from the seed: makes them part of its state.
  void save_values() noexcept {
    header_.value_count = values_of(projector_.p()).size() + values_of(projector_.q()).size();
  }

  void keep(std::span<float> copy) const override { projector_.keep(copy); }
  void restore(std::span<const float> copy) override { projector_.restore(copy); }
  void transport(MomentTransport how, const Moments& moments,
                 std::span<const float> copy) const override {
    const Buffer brought = projector_.home().bring(copy);
    const auto old = projector_.kept(brought.size() == 0 ? copy : brought.as<const float>());
    look_at(projector_, [&](const Projector& now) {
      transport_moments(how, moments, old.p, now.p(), old.q, now.q());
    });
  }

  Projector projector_;
  CodecStateHeader header_;
};

}  // namespace sluiceway
