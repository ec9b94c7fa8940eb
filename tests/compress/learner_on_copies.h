// Lets a host learner learn for any device: it gets copies, and its results are copied back.
#pragma once

#include <gtest/gtest.h>

#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

#include "compress/learner.h"
#include "runtime/device/device_memory.h"

namespace sluiceway::test {

// Expects all memory and the stream to be `device`'s: a copy elsewhere is the caller's mistake.
template <class Learner>
class LearnerOnCopies final : public ProjectorLearner {
 public:
  explicit LearnerOnCopies(DeviceId device) : device_(device) {}

  LearnOutcome learn(const AnyMatrix& g, const LearnableRows& p, const LearnableRows& q,
                     const LearnOptions& options, StreamRef stream) override {
    EXPECT_EQ(stream.device(), device_);
    Copy<float> p_value(*this, p.value), q_value(*this, q.value);
    const Copy<std::int32_t> p_index(*this, entries(p)), q_index(*this, entries(q));
    LearnableRows p_here = p, q_here = q;
    p_here.index = p_index.here.data();
    q_here.index = q_index.here.data();
    p_here.value = p_value.here;
    q_here.value = q_value.here;
    Copy<std::byte> bytes(*this, bytes_of(g));
    AnyMatrix g_here = g;
    g_here.data = bytes.here.data();
    const LearnOutcome outcome = learner_.learn(g_here, p_here, q_here, options, StreamRef::host());
    p_value.store();
    q_value.store();
    return outcome;
  }

  void leading_directions(const AnyMatrix& g, MatrixView<float> p, MatrixView<float> q,
                          std::uint64_t seed, StreamRef stream) override {
    EXPECT_EQ(stream.device(), device_);
    Copy<float> p_all(*this, all_of(p)), q_all(*this, all_of(q));
    Copy<std::byte> bytes(*this, bytes_of(g));
    AnyMatrix g_here = g;
    g_here.data = bytes.here.data();
    MatrixView<float> p_here = p, q_here = q;
    p_here.data = p_all.here.data();
    q_here.data = q_all.here.data();
    learner_.leading_directions(g_here, p_here, q_here, seed, StreamRef::host());
    p_all.store();
    q_all.store();
  }

 private:
  template <typename T>
  struct Copy {
    Copy(const LearnerOnCopies& of, std::span<T> source)
        : device(of.device_), there(source), here(source.size()) {
      copy_device_bytes(device, here.data(), there.data(), there.size_bytes());
    }
    void store() { copy_device_bytes(device, there.data(), here.data(), there.size_bytes()); }

    DeviceId device;
    std::span<T> there;
    std::vector<T> here;
  };

  static std::span<std::int32_t> entries(const LearnableRows& x) {
    return {const_cast<std::int32_t*>(x.index), x.value.size()};
  }
  static std::span<float> all_of(MatrixView<float> x) {
    if (x.rows == 0 || x.cols == 0) return {};
    return {x.data, static_cast<std::size_t>((x.rows - 1) * x.stride + x.cols)};
  }
  static std::span<std::byte> bytes_of(const AnyMatrix& g) {
    const auto elems = static_cast<std::size_t>((g.rows - 1) * g.stride + g.cols);
    return {static_cast<std::byte*>(g.data), elems * size_bytes(g.dtype)};
  }

  DeviceId device_;
  Learner learner_;
};

}  // namespace sluiceway::test
