// The axes of map files (MAP.md "Axes"): how another engine's tensor is built of named axes, and the strided view of it
// that is one of our tensors. Not for other folders.
#pragma once
#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace assay::mapping {

/// Throws Error{malformed}.
[[noreturn]] void bad_map(const std::string& where, const std::string& what, const std::string& wanted = {},
                          const std::string& found = {}, const std::string& hint = {});

/// One axis as written: `name`, `name:4`, `name[0:5,7]`, `1`, `( a b )`, `( a | b )`.
struct Axis {
  enum class Kind { atom, one, product, split } kind = Kind::atom;
  std::string name;                                // of an atom
  int64_t size = -1;                               // of an atom, where it is given
  std::vector<std::pair<int64_t, int64_t>> index;  // of an atom: half-open ranges of their numbers; empty: all
  std::vector<Axis> parts;                         // of a product, slowest first; of a split, each a product
};
using Layout = std::vector<Axis>;  // one per axis of the tensor, slowest first

/// Parts of the one split of a layout; 1 where it has none.
size_t parts_of(const Layout& layout);
/// All names of atoms, in order, with repetitions.
std::vector<std::string> atoms_of(const Layout& layout);

using Sizes = std::map<std::string, int64_t>;

/// "a (b c|d) => a b c | a d". `sizes`: what `let` lines gave. Errors name `where`.
struct Axes {
  Layout theirs;
  std::vector<Layout> ours;  // empty: as theirs
  std::vector<std::string> lets;  // the names of `sizes` that have a use here
};
Axes parse_axes(std::string_view text, const Sizes& sizes, const std::string& where);

/// Sizes of all atoms of `layout` for a tensor of `shape`, given those known. Throws Error{malformed}: another number
/// of axes, a size that contradicts the shape, a size that can't be told.
Sizes solve_sizes(const Layout& layout, const std::vector<int64_t>& shape, Sizes known, const std::string& where);

/// One axis of a view: element i lies at offsets[i] or i * stride (in elements); or it picks source i * source_stride.
struct ViewAxis {
  std::string name;
  int64_t size = 1, stride = 0, source_stride = 0;
  std::vector<int64_t> offsets;
};
struct View {
  int64_t base = 0;  // elements
  std::map<std::string, ViewAxis> axes;
};
/// The axes of part `part` of the layout.
View view_of(const Layout& layout, const std::vector<int64_t>& shape, const Sizes& sizes, size_t part,
             const std::string& where);

}  // namespace assay::mapping
