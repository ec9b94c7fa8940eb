// The memory of one kernel call on the backend's device: host views in, device views out.
//
// Every range that an argument views is copied to the device between guards, at the distance from a
// 256-byte boundary that it has on the host. Overlapping ranges stay one, so a call in place stays
// in place. finish() copies everything back, and fails the test if a guard or a read-only range has
// changed.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <type_traits>
#include <vector>

#include "kernels/adam.h"
#include "kernels/base/view.h"
#include "kernels/bias_norm.h"
#include "kernels/decompress.h"
#include "kernels/factored_moment.h"
#include "kernels/factored_roots.h"
#include "kernels/low_rank.h"
#include "kernels/overflow_scan.h"
#include "kernels/residual_verdict.h"
#include "runtime/device/device_memory.h"

namespace sluiceway::test {

class Placement {
 public:
  explicit Placement(DeviceId device) : device_(device) {}
  Placement(const Placement&) = delete;
  Placement& operator=(const Placement&) = delete;
  ~Placement();

  // First add() every argument, then copy_in(), then placed() every argument.
  template <typename T>
  void add(const T&) {  // A number: it travels with the call.
    static_assert(!std::is_pointer_v<T>, "say what it points to");
  }
  template <typename T>
  void add(std::span<T> x) {
    add_range(x.data(), x.size_bytes(), !std::is_const_v<T>);
  }
  template <typename T>
  void add(MatrixView<T> x) {
    add_rows(x.data, x.rows, x.cols, x.stride, sizeof(T), !std::is_const_v<T>);
  }
  void add(const AnyMatrix& x) {  // Only the kernel knows whether it writes it.
    add_rows(x.data, x.rows, x.cols, x.stride, size_bytes(x.dtype), true);
  }
  void add(const SparseRows& x);
  void add(const SparseColumns& x);
  void add(const BlockRows& x);
  void add(const FactoredRoots& x);
  void add(const LowRank& x) { add(x.left), add(x.right); }
  void add(const FactoredMoment& x) { add(x.row), add(x.col); }
  void add(const MeansPass& x) {
    add(x.means), add(x.verdict), add(x.core), add(x.from), add(x.to), add(x.scan);
  }
  void add(const AdamMoments& x);
  void add(const MasterWeight& x);
  template <typename T>
  void add(const MasterAndCopy<T>& x) {
    add(x.in), add(x.out), add(x.copy);
  }
  void add(const StochasticWeight& x);
  void add(const HiLoWeight& x);
  void add(ScanResult* x) { add_range(x, sizeof *x, true); }
  void add(BiasNorm* x) { add_range(x, sizeof *x, true); }
  void add(ResidualVerdict* x) {
    if (x != nullptr) add_range(x, sizeof *x, true);
  }
  void add(const ResidualVerdict* x) { add_range(x, sizeof *x, false); }

  void copy_in();

  template <typename T>
  T placed(const T& x) const {
    return x;
  }
  template <typename T>
  std::span<T> placed(std::span<T> x) const {
    return {on_device(x.data()), x.size()};
  }
  template <typename T>
  MatrixView<T> placed(MatrixView<T> x) const {
    return {on_device(x.data), x.rows, x.cols, x.stride};
  }
  AnyMatrix placed(const AnyMatrix& x) const;
  SparseRows placed(const SparseRows& x) const;
  SparseColumns placed(const SparseColumns& x) const;
  BlockRows placed(const BlockRows& x) const;
  FactoredRoots placed(const FactoredRoots& x) const;
  LowRank placed(const LowRank& x) const { return {placed(x.left), placed(x.right)}; }
  FactoredMoment placed(const FactoredMoment& x) const { return {placed(x.row), placed(x.col)}; }
  MeansPass placed(const MeansPass& x) const {
    MeansPass there = x;
    there.means = placed(x.means), there.verdict = placed(x.verdict);
    there.core = placed(x.core), there.scan = placed(x.scan);
    there.from = placed(x.from), there.to = placed(x.to);
    return there;
  }
  AdamMoments placed(const AdamMoments& x) const;
  MasterWeight placed(const MasterWeight& x) const;
  template <typename T>
  MasterAndCopy<T> placed(const MasterAndCopy<T>& x) const {
    return {placed(x.in), placed(x.out), placed(x.copy)};
  }
  StochasticWeight placed(const StochasticWeight& x) const;
  HiLoWeight placed(const HiLoWeight& x) const;
  ScanResult* placed(ScanResult* x) const { return on_device(x); }
  BiasNorm* placed(BiasNorm* x) const { return on_device(x); }
  ResidualVerdict* placed(ResidualVerdict* x) const { return on_device(x); }
  const ResidualVerdict* placed(const ResidualVerdict* x) const { return on_device(x); }

  void finish();

 private:
  struct Range {
    std::uintptr_t begin, end;  // On the host.
    bool written;
    std::byte* block = nullptr;  // On the device, with guards.
    std::size_t block_bytes = 0, first = 0;
  };

  void add_range(const void* data, std::size_t bytes, bool written);
  void add_rows(const void* data, std::int64_t rows, std::int64_t cols, std::int64_t stride,
                std::size_t elem_bytes, bool written);
  std::uintptr_t address_on_device(const void* host) const;
  template <typename T>
  T* on_device(T* host) const {
    return host == nullptr ? nullptr : reinterpret_cast<T*>(address_on_device(host));
  }

  DeviceId device_;
  std::vector<Range> ranges_;  // Disjoint and ascending after copy_in().
};

}  // namespace sluiceway::test
