#include "dumps/report_parts.h"

#include <fmt/format.h>

#include <cmath>
#include <fstream>
#include <limits>

#include "dumps/error.h"
#include "dumps/json.h"
#include "dumps/names.h"
#include "dumps/report.h"

namespace assay {

std::vector<nlohmann::ordered_json> read_records(const std::filesystem::path& file) {
  std::ifstream in(file, std::ios::binary);
  if (!in || std::filesystem::is_directory(file)) {
    throw Error(ErrorKind::malformed, file.string(), "can't be read", "a file of JSONL records", "",
                "Commands write one with --json FILE.");
  }
  std::vector<nlohmann::ordered_json> out;
  const auto add = [&out](nlohmann::ordered_json record, const std::string& where) {
    if (!record.is_object() || report::text(record, "record").empty())
      throw Error(ErrorKind::malformed, where, "is no record", "an object with \"record\"", record.type_name());
    out.push_back(std::move(record));
  };
  int64_t line_number = 0;
  for (std::string line; std::getline(in, line);) {
    line_number++;
    if (line.find_first_not_of(" \t\r") == std::string::npos) continue;
    if (out.empty() && line == "{") {  // not a line a record but one document: the kill matrix of `assay faults --json`
      const nlohmann::ordered_json document = read_json(file);
      for (const auto& record : json_get(document, "faults", file.string())) add(record, file.string());
      return out;
    }
    const std::string where = fmt::format("{}, line {}", file.string(), line_number);
    add(parse_json(line, where), where);
  }
  if (in.bad()) throw Error(ErrorKind::io, file.string(), "can't be read to its end");
  return out;
}

namespace report {

const Json* find(const Json& j, std::initializer_list<const char*> path) {
  const Json* at = &j;
  for (const char* key : path) {
    if (!at->is_object()) return nullptr;
    const auto it = at->find(key);
    if (it == at->end()) return nullptr;
    at = &*it;
  }
  return at;
}

double number(const Json& j) {
  if (j.is_number()) return j.get<double>();
  if (j == "Infinity") return std::numeric_limits<double>::infinity();
  if (j == "-Infinity") return -std::numeric_limits<double>::infinity();
  return std::numeric_limits<double>::quiet_NaN();
}

double number(const Json& j, std::initializer_list<const char*> path) {
  const Json* at = find(j, path);
  return at ? number(*at) : std::numeric_limits<double>::quiet_NaN();
}

int64_t integer(const Json& j, std::initializer_list<const char*> path) {
  const Json* at = find(j, path);
  return at && at->is_number_integer() ? at->get<int64_t>() : 0;
}

std::string text(const Json& j, const char* key) {
  const Json* at = find(j, {key});
  return at && at->is_string() ? at->get<std::string>() : "";
}

std::string plain(const Json& j) {
  if (j.is_string()) return j.get<std::string>();
  if (j.is_number_float()) return exact(j.get<double>());
  return j.dump(-1, ' ', false, Json::error_handler_t::replace);
}

std::string words(const Json& j) {
  if (!j.is_object()) return plain(j);
  std::string out;
  for (const auto& [key, value] : j.items()) {
    if (value.is_null() || value == "") continue;
    out += fmt::format("{}{} {}", out.empty() ? "" : ", ", key, words(value));
  }
  return out;
}

std::string figure(double x) {
  if (std::isnan(x)) return "NaN";
  if (std::isinf(x)) return x < 0 ? "-inf" : "inf";
  return x == 0 ? "0" : fmt::format("{:.2e}", x);
}

std::string exact(double x) {
  if (std::isnan(x)) return "NaN";
  if (std::isinf(x)) return x < 0 ? "-Infinity" : "Infinity";
  return fmt::format("{}", x);
}

int phase_order(const std::string& phase) {
  return phase.starts_with("state/") ? 1000000 : phase == "ids" ? -1 : phase_rank(phase);
}

int64_t elements_of(const Json& tensor) {
  double n = 1;
  const Json* shape = find(tensor, {"shape"});
  if (!shape || !shape->is_array()) return 0;
  for (const Json& x : *shape) n *= x.is_number_integer() ? x.get<double>() : 0;
  return n > 0 && n < 0x1p62 ? int64_t(n) : 0;
}

namespace {

/// Length of the UTF-8 character at s[i], and what it is; 0: these bytes are none.
size_t utf8_at(std::string_view s, size_t i, uint32_t* code) {
  const auto byte = [&](size_t k) { return static_cast<unsigned char>(s[k]); };
  const unsigned char lead = byte(i);
  const size_t n = lead < 0x80 ? 1 : lead >> 5 == 6 ? 2 : lead >> 4 == 14 ? 3 : lead >> 3 == 30 ? 4 : 0;
  if (n == 0 || i + n > s.size()) return 0;
  *code = n == 1 ? lead : lead & (0x7fu >> n);
  for (size_t k = 1; k < n; k++) {
    if (byte(i + k) >> 6 != 2) return 0;
    *code = *code << 6 | (byte(i + k) & 0x3fu);
  }
  const uint32_t least[] = {0, 0, 0x80, 0x800, 0x10000};
  const bool surrogate = *code >= 0xd800 && *code < 0xe000;
  return *code < least[n] || *code > 0x10ffff || surrogate ? 0 : n;
}

}  // namespace

std::string escape(std::string_view s) {
  std::string out;
  out.reserve(s.size());
  for (size_t i = 0; i < s.size();) {
    uint32_t code = 0;
    const size_t n = utf8_at(s, i, &code);
    const bool turns = (code >= 0x200e && code <= 0x200f) || (code >= 0x2028 && code <= 0x202e) ||
                       (code >= 0x2066 && code <= 0x2069) || code == 0xfeff;
    if (n == 0) {
      out += fmt::format("\\x{:02x}", static_cast<unsigned char>(s[i]));
    } else if (code == '&') {
      out += "&amp;";
    } else if (code == '<') {
      out += "&lt;";
    } else if (code == '>') {
      out += "&gt;";
    } else if (code == '"') {
      out += "&quot;";
    } else if (code == '\'') {
      out += "&#39;";
    } else if ((code < 0x20 && code != '\n') || (code >= 0x7f && code < 0xa0)) {
      out += fmt::format("\\x{:02x}", code);
    } else if (turns) {
      out += fmt::format("\\u{:04x}", code);
    } else {
      out += s.substr(i, n);
    }
    i += std::max<size_t>(n, 1);
  }
  return out;
}

HtmlTable::HtmlTable(std::string id, std::string caption, std::vector<std::string> head)
    : id_(std::move(id)), caption_(std::move(caption)) {
  out_ = "<thead><tr>";
  for (const std::string& h : head) {
    const bool right = h.starts_with("#");
    right_.push_back(right);
    out_ += fmt::format("<th scope=\"col\"{}>{}</th>", right ? " class=\"n\"" : "", escape(h.substr(right)));
  }
  out_ += "</tr></thead>\n<tbody>\n";
}

HtmlTable& HtmlTable::row(std::string_view css) {
  if (open_row_) out_ += "</tr>\n";
  out_ += css.empty() ? "<tr>" : fmt::format("<tr class=\"{}\">", css);
  open_row_ = true;
  column_ = 0;
  rows_++;
  return *this;
}

std::string HtmlTable::open(bool figures) {
  const size_t c = column_++;
  const bool right = figures || (c < right_.size() && right_[c]);
  return fmt::format("<{}{}", c == 0 ? "th scope=\"row\"" : "td", right ? " class=\"n\"" : "");
}

HtmlTable& HtmlTable::html(std::string_view markup) {
  const char* close = column_ == 0 ? "</th>" : "</td>";
  out_ += open(false) + ">";
  out_ += markup;
  out_ += close;
  return *this;
}

HtmlTable& HtmlTable::cell(std::string_view s) {
  return html(escape(s));
}

HtmlTable& HtmlTable::cell(double x) {
  const char* close = column_ == 0 ? "</th>" : "</td>";
  out_ += fmt::format("{} data-v=\"{}\">{}{}", open(true), exact(x), figure(x), close);
  return *this;
}

HtmlTable& HtmlTable::count(int64_t n) {
  const char* close = column_ == 0 ? "</th>" : "</td>";
  out_ += fmt::format("{}>{}{}", open(true), n, close);
  return *this;
}

std::string boxed_table(const std::string& id, std::string_view caption, std::string_view attributes,
                        std::string_view rows) {
  return fmt::format(
      "<p class=\"cap\" id=\"{0}-t\">{1}</p>\n<div class=\"box\" role=\"region\" tabindex=\"0\" "
      "aria-labelledby=\"{0}-t\">\n<table id=\"{0}\" aria-labelledby=\"{0}-t\"{2}>\n{3}</table></div>\n",
      id, escape(caption), attributes, rows);
}

std::string HtmlTable::str() {
  if (open_row_) out_ += "</tr>\n";
  open_row_ = false;
  return boxed_table(id_, caption_, "", out_ + "</tbody>");
}

Material sort_out(const std::vector<Json>& records) {
  Material m;
  bool open = false;  // a header was met and its summary not yet
  const auto current = [&]() -> Comparison& {
    if (!open) m.comparisons.emplace_back();
    open = true;
    return m.comparisons.back();
  };
  for (const Json& r : records) {
    const std::string kind = text(r, "record");
    if (kind == "compare") {
      open = false;
      current().head = &r;
    } else if (kind == "summary") {
      current().summary = &r;
      open = false;
    } else if (kind == "tensor") {
      current().tensors.push_back(&r);
    } else if (kind == "greedy") {
      current().greedy.push_back(&r);
    } else if (kind == "topk") {
      current().topk.push_back(&r);
    } else if (kind == "warning") {
      current().warnings.push_back(&r);
    } else if (kind == "node_error") {
      (open ? current().nodes : m.nodes).push_back(&r);
    } else if (kind == "bisect" || kind == "graft" || kind == "replay") {
      m.bisects.push_back(&r);
    } else if (kind == "fault") {
      m.faults.push_back(&r);
    } else if (kind == "check_result") {
      m.checks.push_back(&r);
    } else {
      auto it = m.unknown.begin();
      while (it != m.unknown.end() && it->first != kind) ++it;
      if (it == m.unknown.end()) it = m.unknown.insert(it, {kind, 0});
      it->second++;
    }
  }
  return m;
}

}  // namespace report
}  // namespace assay
