// The inside of suggest_map(): tensors whose names differ in their numbers only, and what these numbers count. Not for
// other folders.
#pragma once
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "dumps/dump.h"
#include "dumps/suggest_match.h"

namespace assay::suggesting {

inline constexpr double kEnough = 0.5;  // share of a tensor's columns that must be found before it is looked at closer

/// What a number in a name counts. same: replicas; sum: partial sums; rank: shards.
enum class Role { constant, layer, rank, same, sum, step, prompt, unknown };

using Numbers = std::vector<int64_t>;
struct Family {
  std::vector<std::string> texts;  // one more than numbers
  std::vector<std::pair<Numbers, const DumpTensor*>> members;
  std::vector<Role> roles;  // of the numbers
  Numbers values;           // of the member looked at
  int64_t layer_add = 0;    // our layer is theirs and so many
  std::map<Numbers, const DumpTensor*> by_numbers;

  const DumpTensor* member(const Numbers& numbers) const;
  bool has(Role role) const;
  std::string capture(size_t k) const;  // "{L}", or the number itself where it is constant
  std::string digits(size_t k) const;   // the number of the member looked at, as its name writes it: "00"
  /// The name from text `text`, character `at`, on.
  std::string pattern(size_t text = 0, size_t at = 0) const;
};
/// Families of a dump by their texts. Throws Error{usage}: a dump without values.
std::map<std::string, Family> families_of(const Dump& dump);
/// The letters at the end of a text: "rank" of "a/rank".
std::string word_before(const std::string& text);

/// A tensor seen as columns over tokens or positions, and where its columns were found.
struct Seen {
  std::vector<Hit> hits;
  double share = 0;                        // of the columns that were found
  std::vector<size_t> special;             // axes that are no columns,
  std::vector<std::string> special_names;  // and their names: "token", "page", "slot", "position"
  std::vector<int64_t> places;             // where the tokens stand along them: columns_of()
  const DumpTensor* table = nullptr;       // block table
};
/// The share of a sample of columns that is found, by an exact measure or else a loose one.
double probe(const Columns& sample, const Index& index);
/// Looks for the columns, first exactly (float32), then loosely (bfloat16); for a sample alone where that says enough.
Seen find(const Columns& columns, const Index& index);
/// The same for a tensor, of which only the sample is read where it is none of ours.
Seen find(const DumpTensor& t, const std::vector<size_t>& special, const std::vector<int64_t>& places,
          const Index& index);
/// Tensors of ours in which columns were found, by falling number of them; strays are left out.
std::vector<int> tensors_of(const std::vector<Hit>& hits);
/// The layer in a name of ours.
std::optional<int64_t> layer_of(const std::string& name);

/// Tells roles by what changes with each number.
struct Numbering {
  const Index& index;
  std::function<const Seen*(const Numbers&, const DumpTensor&)> look;  // null: not this pass
  std::function<int64_t(int64_t prompt)> length;                       // tokens or positions of a prompt; -1: not known
  int64_t prompt = 0;                                                  // that `index` is of
  bool cache = false;     // what is looked at are caches: they have no passes
  bool physical = false;  // passes are physical: rows tables tell prompts

  /// Fills roles, values, layer_add. Returns what was seen of the member looked at (or of the sum over its ranks);
  /// nothing where too few columns were found.
  std::optional<Seen> tell(Family& f) const;

 private:
  std::vector<const std::pair<Numbers, const DumpTensor*>*> probable_first(const Family& f) const;
  std::optional<Seen> sum_over(const Family& f, const Numbers& numbers, size_t k) const;
  Role role_of(Family& f, size_t k, const Numbers& numbers, const DumpTensor& t, const Seen& reference,
               std::optional<size_t> summed) const;
};

}  // namespace assay::suggesting
