// A learner for codecs whose projectors are singular directions, without libtorch.
#pragma once

#include <Eigen/SVD>
#include <cstdint>

#include "compress/learner.h"
#include "tests/support/matrix.h"

namespace sluiceway::test {

// Exact singular directions, and no learning.
class ExactLearner final : public ProjectorLearner {
 public:
  LearnOutcome learn(const AnyMatrix& /*g*/, const LearnableRows& /*p*/, const LearnableRows& /*q*/,
                     const LearnOptions& /*options*/, StreamRef /*stream*/) override {
    return {};
  }
  void leading_directions(const AnyMatrix& g, MatrixView<float> p, MatrixView<float> q,
                          std::uint64_t /*seed*/, StreamRef /*stream*/) override {
    Eigen::MatrixXd dense_g(g.rows, g.cols);
    for (std::int64_t i = 0; i < g.rows; ++i) {
      for (std::int64_t j = 0; j < g.cols; ++j) dense_g(i, j) = to_f64(g.as<float>().row(i)[j]);
    }
    const Eigen::JacobiSVD<Eigen::MatrixXd> svd(dense_g, Eigen::ComputeThinU | Eigen::ComputeThinV);
    copy(svd.matrixU(), p);
    copy(svd.matrixV(), q);
  }

 private:
  static void copy(const Eigen::MatrixXd& from, MatrixView<float> to) {
    for (std::int64_t i = 0; i < to.rows; ++i) {
      for (std::int64_t j = 0; j < to.cols; ++j) to.row(i)[j] = static_cast<float>(from(i, j));
    }
  }
};

}  // namespace sluiceway::test
