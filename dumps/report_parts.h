// The inside of the reports (render.cpp for text, report_*.cpp for HTML): reading records without trusting them, and
// the pieces of a page. Not for other folders.
#pragma once
#include <cstdint>
#include <initializer_list>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace assay::report {

using Json = nlohmann::ordered_json;

/// The value behind a path of keys, nullptr where some key is absent or its parent no object.
const Json* find(const Json& j, std::initializer_list<const char*> path);
/// A number as records write it ("NaN", "Infinity", "-Infinity" as strings); NaN for anything else.
double number(const Json& j);
double number(const Json& j, std::initializer_list<const char*> path);
/// Whole numbers; 0 where there is none.
int64_t integer(const Json& j, std::initializer_list<const char*> path);
std::string text(const Json& j, const char* key);  // "" where it is absent or no string
/// A value as people read it: strings as they are, numbers shortest, the rest as JSON.
std::string plain(const Json& j);

std::string words(const Json& j);  // the same, objects as "key value, key value"

std::string figure(double x);  // "1.23e-06", "0", "inf", "NaN"
std::string exact(double x);   // shortest text that reads back as the same double
/// Elements of a tensor record by its shape; 0 where it has none.
int64_t elements_of(const Json& tensor);
/// Rank of a phase in a forward pass, ids before and caches behind everything: the order of tables and maps.
int phase_order(const std::string& phase);

/// For element content and quoted attributes. Controls, bytes that are no UTF-8 and marks that turn the direction of
/// writing are spelt out, so that a hostile name can't steer a reader.
std::string escape(std::string_view s);

/// A table in a box that scrolls by itself, under a line that says what it is. `attributes` begins with a blank.
std::string boxed_table(const std::string& id, std::string_view caption, std::string_view attributes,
                        std::string_view rows);

/// A table row by row; cells are escaped, figures carry their exact value in data-v.
class HtmlTable {
 public:
  /// `head`: column titles; a title that begins with "#" is a column of figures (aligned right).
  HtmlTable(std::string id, std::string caption, std::vector<std::string> head);
  HtmlTable& row(std::string_view css = {});
  HtmlTable& cell(std::string_view s);  // the first cell of a row is its header
  HtmlTable& cell(double x);            // figure(x), data-v exact; NaN that is absent: use blank()
  HtmlTable& count(int64_t n);
  HtmlTable& html(std::string_view markup);  // markup of our own making
  HtmlTable& blank() { return cell("–"); }
  bool empty() const { return rows_ == 0; }
  std::string str();  // in a box that scrolls by itself

 private:
  std::string open(bool figures);
  std::string id_, caption_, out_;
  std::vector<bool> right_;
  size_t column_ = 0, rows_ = 0;
  bool open_row_ = false;
};

/// Cells of log10 errors in a grid: layers against phases or positions.
struct HeatMap {
  struct Cell {
    enum class Kind : uint8_t { none, value, equal, unmeasured, missing, skipped } kind = Kind::none;
    double value = 0;  // the error itself; infinite: not finite on one side
    bool failed = false;
    std::string detail;  // where: what a tooltip says behind the place and the figure
    /// Takes the other cell's place if that one is worse.
    void worse(const Cell& other);
  };
  std::string id, caption, measure = "max_rel", corner = "layer";
  std::vector<std::string> rows, columns;
  std::vector<Cell> cells;  // [row][column]
  bool upright = false;     // short column titles (positions) stand upright
  Cell& at(size_t r, size_t c) { return cells[r * columns.size() + c]; }
};
std::string heat_map_html(const HeatMap& map);
std::string heat_legend_html();

/// A comparison: its header and everything up to the next header that belongs to it.
struct Comparison {
  const Json* head = nullptr;  // may be absent (records cut off)
  const Json* summary = nullptr;
  std::vector<const Json*> tensors, greedy, topk, warnings, nodes;  // nodes: `node_error` between header and summary
};
/// All records, sorted into what they speak of.
struct Material {
  std::vector<Comparison> comparisons;
  std::vector<const Json*> nodes, bisects, faults, checks;  // nodes: of no comparison; bisects: grafts and replays of reproducers, too
  std::vector<std::pair<std::string, int64_t>> unknown;     // kinds that no part shows
};
Material sort_out(const std::vector<Json>& records);

/// A tensor with an error per position: `per_bin` positions to a value, from `first` on.
struct Strip {
  const Json* tensor;
  const Json* errors;
  int64_t first, per_bin;
  int64_t end() const { return first + per_bin * int64_t(errors->size()); }
};
/// Nullopt: the record has no errors by position, or (`odd`) they stand where no position can be.
std::optional<Strip> strip_of(const Json& tensor, bool* odd = nullptr);

/// A part of the page with a heading; `body` empty: nothing.
struct Section {
  std::string id, title, body;
};
// Each appends what it has to show. `prefix` keeps ids apart where a page holds several comparisons ("c1-").
void comparison_sections(const Comparison& c, const Material& all, const std::string& prefix,
                         std::vector<Section>& out);
void map_sections(const Comparison& c, const std::string& prefix, std::vector<Section>& out);
/// Added error per node; ids of the page begin with `prefix`.
void node_section(const std::vector<const Json*>& nodes, const std::string& prefix, std::vector<Section>& out);
void suite_sections(const Material& all, std::vector<Section>& out);
/// PASS on the card and in the title: only what the summary says itself, never what it leaves out.
bool passed(const Comparison& c);
/// What a comparison left out, in words; always at least one sentence.
std::vector<std::string> not_compared(const Comparison& c);

extern const char* const kStyle;
extern const char* const kScript;

}  // namespace assay::report
