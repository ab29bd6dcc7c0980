#include "dumps/rows.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <map>

#include "dumps/error.h"
#include "dumps/json.h"
#include "dumps/names.h"
#include "dumps/text.h"

namespace assay {
namespace {

using Json = nlohmann::ordered_json;

[[noreturn]] void unknown_owner(const std::string& where, const std::string& what, const std::string& wanted = {},
                                const std::string& found = {}) {
  throw Error(ErrorKind::malformed, where, "rows of unknown owner: " + what, wanted, found);
}

struct Row {
  int64_t prompt, position, kind;
};

// One logical tensor while its rows are gathered from any number of physical ones.
struct Logical {
  const DumpTensor* first = nullptr;  // gives dtype, row shape, order, inputs
  int64_t prompt = 0;
  int64_t decode_step = -1;  // -1: prefill
  std::string rest;
  struct Source {
    int64_t position;
    const DumpTensor* tensor;
    int64_t row;
    bool operator<(const Source& o) const { return position < o.position; }
  };
  std::vector<Source> rows;
};

class Aligner {
 public:
  explicit Aligner(const Dump& dump) : dump_(dump) { read_prompts(), read_tables(); }

  // The key that the tensor's name continues, and the table that holds for it: its own if it has one (a pass that computes
  // logits for some of its rows only), else that of the longest key.
  void take(const DumpTensor& t) {
    const std::string* prefix = nullptr;
    for (const auto& [key, rows] : tables_) {
      if (t.name.size() > key.size() + 1 && t.name.starts_with(key) && t.name[key.size()] == '/' &&
          (!prefix || key.size() > prefix->size())) {
        prefix = &key;
      }
    }
    if (!prefix) {
      if (tables_.contains(t.name)) unknown_owner(t.name, "the table's key has no pass in front");
      others_.push_back(&t);
      return;
    }
    const auto own = tables_.find(t.name);
    const std::vector<Row>& table = own != tables_.end() ? own->second : tables_.at(*prefix);
    const int64_t n = t.shape.empty() ? -1 : t.shape[0];
    if (n != int64_t(table.size())) {
      unknown_owner(t.name, "the table has other rows than the tensor", fmt::format("{} rows", table.size()),
                    shape_text(t.shape));
    }
    for (int64_t r = 0; r < n; ++r) add(t, t.name.substr(prefix->size() + 1), r, table[size_t(r)]);
  }

  bool is_table(const std::string& name) const { return table_names_.contains(name); }
  const std::vector<const DumpTensor*>& others() const { return others_; }

  // Sorted rows of every logical tensor, checked to be complete.
  std::map<std::string, Logical> finish() {
    std::map<std::string, Logical> out;
    for (auto& [name, l] : logical_) {
      std::sort(l.rows.begin(), l.rows.end());
      for (size_t i = 1; i < l.rows.size(); ++i) {
        if (l.rows[i].position == l.rows[i - 1].position) {
          unknown_owner(place(l.rows[i]), fmt::format("prompt {} position {} a second time", l.prompt, l.rows[i].position),
                        "each position once", place(l.rows[i - 1]));
        }
      }
      std::string final_name = name;
      if (l.decode_step < 0) {
        const int64_t length = lengths_[size_t(l.prompt)];
        if (l.rest == "logits" && l.rows.size() == 1 && l.rows[0].position == length - 1) {
          final_name += "_last";  // the usual economy: logits of the last position alone
        } else if (int64_t(l.rows.size()) != length) {
          int64_t missing = 0;
          while (size_t(missing) < l.rows.size() && l.rows[size_t(missing)].position == missing) ++missing;
          unknown_owner(name, fmt::format("prompt {} position {} is in no pass", l.prompt, missing),
                        fmt::format("{} rows", length), std::to_string(l.rows.size()));
        }
      }
      out.emplace(std::move(final_name), std::move(l));
    }
    return out;
  }

 private:
  static std::string place(const Logical::Source& s) { return fmt::format("{} row {}", s.tensor->name, s.row); }

  void read_prompts() {
    const std::string where = dump_.path().string() + ": manifest";
    const Json& prompts = json_get(dump_.manifest(), "prompts", where);
    if (!prompts.is_array()) throw Error(ErrorKind::malformed, where + ".prompts", "wrong JSON type", "an array");
    for (size_t i = 0; i < prompts.size(); ++i) {
      const std::string at = where + fmt::format(".prompts[{}]", i);
      lengths_.push_back(int64_t(json_ints(json_get(prompts[i], "ids", at), at + ".ids", 0).size()));
    }
  }

  void read_tables() {
    const std::string where = dump_.path().string() + ": manifest.rows";
    const Json& tables = dump_.manifest()["rows"];
    if (!tables.is_object()) throw Error(ErrorKind::malformed, where, "wrong JSON type", "an object", tables.type_name());
    for (const auto& [key, value] : tables.items()) {
      const std::string name = json_string(value, where + "." + in_quotes(key));
      const DumpTensor* t = dump_.find(name);
      if (!t) throw Error(ErrorKind::malformed, where, "the table " + in_quotes(name) + " is not in the dump");
      if (t->dtype != DType::i64 || t->shape.size() != 2 || t->shape[1] != 3) {
        throw Error(ErrorKind::malformed, name, "a rows table of an odd shape", "I64 [rows, 3]",
                    fmt::format("{} {}", name_of(t->dtype), shape_text(t->shape)));
      }
      if (!t->data) throw Error(ErrorKind::usage, name, "a rows table can't be applied to a dump without values", "--mode full");
      std::vector<Row> rows(size_t(t->shape[0]));
      for (size_t r = 0; r < rows.size(); ++r) {
        std::memcpy(&rows[r], t->data + r * 24, 24);
        check(rows[r], fmt::format("{} row {}", name, r));
      }
      tables_.emplace(key, std::move(rows));
      table_names_[name] = true;
    }
  }

  void check(const Row& row, const std::string& where) const {
    if (row.kind < int64_t(RowKind::token) || row.kind > int64_t(RowKind::draft)) {
      unknown_owner(where, "unknown kind", "0 token, 1 padding or 2 draft", std::to_string(row.kind));
    }
    if (row.kind == int64_t(RowKind::padding)) return;
    if (row.prompt < 0 || row.prompt >= int64_t(lengths_.size())) {
      unknown_owner(where, "the manifest does not declare this prompt", fmt::format("0 .. {}", int64_t(lengths_.size()) - 1),
                    std::to_string(row.prompt));
    }
    if (row.position < 0) unknown_owner(where, "a negative position", "0 or more", std::to_string(row.position));
  }

  void add(const DumpTensor& t, const std::string& rest, int64_t r, const Row& row) {
    if (row.kind != int64_t(RowKind::token)) return;
    const int64_t length = lengths_[size_t(row.prompt)];
    const int64_t step = row.position < length ? -1 : row.position - length;
    const std::string name = step < 0 ? fmt::format("prompt{}/prefill/0/{}", row.prompt, rest)
                                      : fmt::format("prompt{}/decode/{}/{}", row.prompt, step, rest);
    Logical& l = logical_[name];
    if (!l.first) {
      l.first = &t;
      l.prompt = row.prompt;
      l.decode_step = step;
      l.rest = rest;
    }
    const bool same_row = l.first->dtype == t.dtype && l.first->shape.size() == t.shape.size() &&
                          std::equal(t.shape.begin() + 1, t.shape.end(), l.first->shape.begin() + 1);
    if (!same_row) {
      throw Error(ErrorKind::malformed, t.name, "rows of " + in_quotes(name) + " of two kinds",
                  fmt::format("{} {} as in {}", name_of(l.first->dtype), shape_text(l.first->shape), l.first->name),
                  fmt::format("{} {}", name_of(t.dtype), shape_text(t.shape)));
    }
    l.rows.push_back({row.position, &t, r});
  }

  const Dump& dump_;
  std::vector<int64_t> lengths_;  // of the prompts
  std::map<std::string, std::vector<Row>> tables_;
  std::map<std::string, bool> table_names_;
  std::map<std::string, Logical> logical_;
  std::vector<const DumpTensor*> others_;
};

}  // namespace

Dump align_rows(const Dump& dump) {
  if (!dump.manifest().contains("rows")) return dump;
  Aligner aligner(dump);
  for (const DumpTensor& t : dump.tensors()) {
    if (aligner.is_table(t.name)) continue;
    if (!t.data) throw Error(ErrorKind::usage, t.name, "rows can't be aligned in a dump without values", "--mode full");
    aligner.take(t);
  }
  Dump out = dump;
  out.manifest_.erase("rows");
  out.tensors_.clear();
  for (const DumpTensor* t : aligner.others()) out.tensors_.push_back(*t);
  for (auto& [name, l] : aligner.finish()) {
    if (dump.find(name)) throw Error(ErrorKind::malformed, name, "the tensor is there already, and rows of a table lead to it");
    DumpTensor t = *l.first;
    t.name = name;
    t.shape[0] = int64_t(l.rows.size());
    for (const Logical::Source& s : l.rows) {
      t.order = std::min(t.order, s.tensor->order);
      if (t.fault.empty()) t.fault = s.tensor->fault;
    }
    const size_t row_bytes = t.bytes() / std::max<size_t>(size_t(t.shape[0]), 1);
    auto values = std::make_shared<std::vector<std::byte>>();
    auto hashes = std::make_shared<std::vector<uint64_t>>();
    values->reserve(t.bytes());
    for (const Logical::Source& s : l.rows) {
      const std::byte* row = s.tensor->data + size_t(s.row) * row_bytes;
      values->insert(values->end(), row, row + row_bytes);
    }
    canonicalise(t.dtype, values->data(), t.elements());
    TensorDigest digest(t.dtype, std::max<int64_t>(t.columns(), 1), true, [&](uint64_t h) { hashes->push_back(h); });
    digest.update(values->data(), t.elements());
    t.xxh3_128 = digest.hash();
    t.stats = digest.stats();
    t.data = values->data();
    t.row_hashes = hashes->empty() ? nullptr : hashes->data();
    out.storage_.push_back(values);
    out.storage_.push_back(hashes);
    out.tensors_.push_back(std::move(t));
  }
  out.sort_and_index();
  return out;
}

}  // namespace assay
