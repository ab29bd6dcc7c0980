// The inside of suggest_map(): columns of theirs found among columns of ours. Not for other folders.
#pragma once
#include <cstdint>
#include <string>
#include <vector>

#include "dumps/dump.h"

namespace assay::suggesting {

/// A tensor seen as columns over `tokens` rows (tokens or positions): x[column * tokens + token].
struct Columns {
  int64_t tokens = 0, columns = 0;
  std::vector<double> x;
};

/// Tokens lie along the axes `special` of the tensor; token k at `places[k]`, counted along these axes, slowest first.
/// All else is columns; `which`: only these of them.
Columns columns_of(const DumpTensor& t, const std::vector<size_t>& special, const std::vector<int64_t>& places,
                   const std::vector<int64_t>* which = nullptr);
int64_t count_columns(const DumpTensor& t, const std::vector<size_t>& special);
/// At most 64 of `n` columns, from all over a tensor and in no order.
std::vector<int64_t> sample_of(int64_t n);

/// A column of ours: which tensor, which of its columns; -1: none is near.
struct Hit {
  int tensor = -1;
  int64_t column = 0;
};

/// Columns of our tensors over the same tokens, sorted by a projection, so that the nearest is found in a window.
class Index {
 public:
  explicit Index(int64_t tokens);
  void add(const std::string& name, Columns columns);
  void finish();
  /// The nearest column whose largest difference is at most `tolerance` of its largest value.
  /// `only`: of this tensor; -1: of any.
  Hit find(const double* column, double tolerance, int only = -1) const;
  std::vector<Hit> find(const Columns& columns, double tolerance, int only = -1) const;
  /// Whether `column` is our column `at` of `tensor`, by the same measure.
  bool is_near(const double* column, double tolerance, int tensor, int64_t at) const;
  const std::vector<std::string>& names() const { return names_; }
  int64_t columns_of(int tensor) const { return columns_[size_t(tensor)].columns; }
  int64_t searched() const { return searched_; }  // columns that were looked for: the work that was done

 private:
  double project(const double* column) const;
  int64_t tokens_;
  mutable int64_t searched_ = 0;
  std::vector<double> weights_;
  std::vector<std::string> names_;
  std::vector<Columns> columns_;
  struct Entry {
    double key, scale;
    int tensor;
    int64_t column;
  };
  std::vector<Entry> entries_;
};

/// How a part of theirs lies among our columns, as axes of MAP.md: blocks of `size` columns.
struct Order {
  std::string theirs_block, theirs_inner, ours_block,
      ours_inner;  // "h:2[1,0]", "j:4 pair:2"; "h", "pair j"; blocks may be ""
  int64_t size = 0;
  double agreed = 0;   // share of the found columns that lie so
  bool plain = false;  // as it is
};
/// `hits`: our column of each local feature, [rank][feature], -1 where none was found. Tries: as it is, RoPE pairs
/// apart or together, heads permuted, heads innermost; ranks one behind the other. `name`: ends the axes' names.
Order find_order(const std::vector<std::vector<int64_t>>& hits, const std::string& name);

}  // namespace assay::suggesting
