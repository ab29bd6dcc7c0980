// The oracle's mixture of experts against numbers that can be checked by hand.
#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "dumps/error.h"
#include "oracle/ops.h"

namespace assay::oracle {
namespace {

Matrix64 matrix(int64_t rows, int64_t columns, std::vector<double> v) {
  Matrix64 m(rows, columns);
  m.v = std::move(v);
  return m;
}

TEST(OracleExperts, TheLargestTiesToTheLowerIdAndNoneOfANan) {
  const Matrix64 ids = topk(matrix(3, 4, {1, 3, 3, 2, 0, -0.0, 0, 0, 1, NAN, 5, 4}), 3);
  EXPECT_EQ(ids.v, (std::vector<double>{1, 2, 3, 0, 1, 2, -1, -1, -1}));
}

TEST(OracleExperts, SoftmaxOverAllOfTheChosen) {
  const Matrix64 logits = matrix(2, 3, {0, std::log(2), std::log(5), 1000, 1000, -INFINITY}), ids = matrix(2, 2, {2, 1, 0, 1});
  const Matrix64 plain = topk_weights(logits, ids, false), normalised = topk_weights(logits, ids, true);
  for (auto [got, want] : {std::pair{plain.at(0, 0), 5.0 / 8}, {plain.at(0, 1), 2.0 / 8}, {plain.at(1, 0), 0.5}, {normalised.at(0, 0), 5.0 / 7}, {normalised.at(0, 1), 2.0 / 7}})
    EXPECT_NEAR(got, want, 1e-15);
  EXPECT_TRUE(std::isnan(topk_weights(logits, matrix(2, 1, {-1, -1}), true).at(0, 0)));
}

TEST(OracleExperts, EachRowWithItsOwn) {
  // Three experts of two outputs over two inputs.
  const Matrix64 w = matrix(6, 2, {1, 0, 0, 1, 2, 0, 0, 2, 1, 1, 1, -1});
  const Matrix64 x = matrix(2, 2, {3, 5, 7, 11}), ids = matrix(2, 2, {0, 2, 1, -1});
  const Matrix64 y = expert_linear(x, ids, rows_of(w), 3, 1);
  EXPECT_EQ(std::vector<double>(y.row(0), y.row(0) + 4), (std::vector<double>{3, 5, 8, -2}));
  EXPECT_EQ(y.at(1, 0), 14);
  EXPECT_EQ(y.at(1, 1), 22);
  EXPECT_TRUE(std::isnan(y.at(1, 2)) && std::isnan(y.at(1, 3)));
  EXPECT_EQ(expert_magnitude(x, ids, rows_of(w), 3, 1).at(0, 3), 8);
  // A part of x per rank.
  const Matrix64 parts = expert_linear(matrix(1, 4, {3, 5, 7, 11}), matrix(1, 2, {1, 0}), rows_of(w), 3, 1);
  EXPECT_EQ(parts.v, (std::vector<double>{6, 10, 7, 11}));
  EXPECT_THROW(expert_linear(matrix(1, 6, {1, 2, 3, 4, 5, 6}), matrix(1, 2, {1, 0}), rows_of(w), 3, 1), Error);
}

TEST(OracleExperts, SumAndGate) {
  EXPECT_EQ(expert_sum(matrix(1, 4, {1, 2, 10, 20}), matrix(1, 2, {0.5, 0.25})).v, (std::vector<double>{3, 6}));
  EXPECT_EQ(gated_add(matrix(1, 1, {0}), matrix(1, 2, {4, 6}), matrix(1, 2, {1, 1})).v, (std::vector<double>{3, 4}));
}

}  // namespace
}  // namespace assay::oracle
