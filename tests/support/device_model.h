// Weights on any device, and noise from which a kernel on the computing stream makes gradients: so
// a backward's gradients arrive late, and depend on what an update has written.
//
// Hardly any call here waits for the device: the stream itself copies the observed weights, and the
// caller gets them when all work is done. So a missing wait of the engine shows.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <utility>
#include <vector>

#include "kernels/compress.h"
#include "runtime/device/device_memory.h"
#include "runtime/device/stream.h"
#include "runtime/memory/budget.h"
#include "runtime/memory/buffer.h"
#include "tests/support/matrix.h"
#include "tests/support/rng.h"
#include "tests/support/stream_hold.h"

namespace sluiceway::test {

struct DeviceWeight {
  std::int64_t rows = 0, cols = 0;
  DType dtype = DType::kF32;
};

class DeviceModel {
 public:
  struct Counts {
    int steps = 0, micro_batches = 1;
    int looks = 0;  // Kept snapshots of each weight.
  };
  using Noise = std::function<Matrix(Rng& rng, int weight, int step, int micro)>;

  DeviceModel(DeviceId device, std::vector<DeviceWeight> weights, const Counts& counts,
              const Noise& noise)
      : device_(device),
        specs_(std::move(weights)),
        counts_(counts),
        stream_(Stream::owned(device, {"sw-test"})) {
    if (!device.is_host()) {
      stream_.enqueue([this](StreamRef ref) { compute_ = ref; });
    }
    Rng rng(20261123);
    for (int i = 0; i < size(); ++i) {
      const auto [rows, cols, dtype] = spec(i);
      weights_.push_back(place(bytes_in(rng.matrix(rows, cols), dtype)));
      for (int step = 0; step < counts.steps; ++step) {
        for (int k = 0; k < counts.micro_batches; ++k) {
          gradients_.push_back(place(bytes_of(noise(rng, i, step, k).v)));
        }
      }
      const std::vector<std::byte> zeros = bytes_of(Matrix(rows, cols).v);
      for (int at = 0; at < counts.looks; ++at) seen_.push_back(place(zeros));
    }
  }

  DeviceId device() const noexcept { return device_; }
  std::uint64_t own_bytes() const { return budget_.used(Tier::kDevice); }
  StreamRef compute() const noexcept { return compute_; }
  int size() const noexcept { return static_cast<int>(specs_.size()); }
  const DeviceWeight& spec(int i) const { return specs_.at(at(i)); }

  AnyMatrix weight(int i) const {
    const auto [rows, cols, dtype] = spec(i);
    return {weights_[at(i)].data(), rows, cols, cols, dtype};
  }
  std::vector<AnyMatrix> weights() const {
    std::vector<AnyMatrix> all;
    for (int i = 0; i < size(); ++i) all.push_back(weight(i));
    return all;
  }
  // The noise, and the gradient that a kernel has made of it.
  MatrixView<float> gradient(int i, int step, int micro) const {
    return f32(gradients_, i, (i * counts_.steps + step) * counts_.micro_batches + micro);
  }

  // Copies a weight in the stream that computes; also one in other memory.
  void look(int i, int look) const { this->look(i, look, weight(i)); }
  void look(int i, int look, const AnyMatrix& weight) const {
    compress(seen_view(i, look), 0.0F, weight, compute_);
  }
  // Returns a snapshot, once the stream is done.
  Matrix seen(int i, int look) const {
    Matrix matrix(spec(i).rows, spec(i).cols);
    copy_device_bytes(device_, matrix.v.data(), seen_view(i, look).data, 4 * matrix.v.size());
    return matrix;
  }

  // Work enqueued on the computing stream from now on waits until the word is raised.
  HoldWord hold() {
    const HoldWord held(device_);
    held.hold(compute_);
    return held;
  }
  Event reached() { return stream_.record(); }  // All its work so far is done.

  Buffer place(const std::vector<std::byte>& bytes) {
    Buffer buffer(budget_, Tier::kDevice, device_, bytes.size(), "memory of a test");
    copy_device_bytes(device_, buffer.data(), bytes.data(), bytes.size());
    return buffer;
  }
  Buffer zeros(std::size_t bytes) { return place(std::vector<std::byte>(bytes)); }

  static AnyMatrix any(MatrixView<float> x) {
    return {x.data, x.rows, x.cols, x.stride, DType::kF32};
  }

 private:
  static std::size_t at(int i) noexcept { return static_cast<std::size_t>(i); }

  template <typename T>
  static std::vector<std::byte> bytes_of(const std::vector<T>& x) {
    const auto* const first = reinterpret_cast<const std::byte*>(x.data());
    return {first, first + x.size() * sizeof(T)};
  }
  static std::vector<std::byte> bytes_in(const Matrix& x, DType dtype) {
    switch (dtype) {
      case DType::kBF16:
        return bytes_of(rounded_to<bf16>(x).v);
      case DType::kF16:
        return bytes_of(rounded_to<f16>(x).v);
      case DType::kF32:
        break;
    }
    return bytes_of(x.v);
  }

  MatrixView<float> f32(const std::vector<Buffer>& of, int i, int index) const {
    return {of[at(index)].as<float>().data(), spec(i).rows, spec(i).cols};
  }
  MatrixView<float> seen_view(int i, int look) const {
    return f32(seen_, i, i * counts_.looks + look);
  }

  DeviceId device_;
  std::vector<DeviceWeight> specs_;
  Counts counts_;
  Budget budget_ = Budget::unlimited();
  Stream stream_;
  StreamRef compute_ = StreamRef::host();
  std::vector<Buffer> weights_, gradients_, seen_;
};

}  // namespace sluiceway::test
