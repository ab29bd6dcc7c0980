// A comparison for people. Everything printed stands in the records; nothing is computed but sums and maxima over them.
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cctype>
#include <cmath>
#include <iterator>
#include <map>
#include <string>
#include <vector>

#include "dumps/compare.h"
#include "dumps/compare_plan.h"
#include "dumps/names.h"
#include "dumps/report_parts.h"
#include "dumps/text.h"

namespace assay::report {
namespace {

constexpr size_t kMostLines = 6;    // of failing tensors, unless verbose
constexpr size_t kMostPhases = 12;  // of failing phases
constexpr size_t kClosest = 4;      // of passing phases: those closest to their tolerance

/// Columns aligned by their widest cell: the first to the left, the last two as they are, figures to the right.
class Table {
 public:
  explicit Table(std::vector<std::string> head, size_t left_from) : left_from_(left_from) { rows_.push_back(std::move(head)); }
  void add(std::vector<std::string> row) { rows_.push_back(std::move(row)); }
  bool empty() const { return rows_.size() < 2; }
  std::string str() const {
    std::vector<size_t> width;
    for (const auto& row : rows_) {
      width.resize(std::max(width.size(), row.size()));
      for (size_t c = 0; c < row.size(); c++) width[c] = std::max(width[c], row[c].size());
    }
    std::string out;
    for (const auto& row : rows_) {
      std::string line = " ";
      for (size_t c = 0; c < row.size(); c++) {
        const bool left = c == 0 || c >= left_from_;
        line += " " + (left ? fmt::format("{:<{}}", row[c], width[c]) : fmt::format("{:>{}}", row[c], width[c])) + " ";
      }
      line.erase(line.find_last_not_of(' ') + 1);
      out += line + "\n";
    }
    return out;
  }

 private:
  std::vector<std::vector<std::string>> rows_;
  size_t left_from_;
};

struct PhaseLine {
  int64_t n = 0, failed = 0, skipped = 0, elements = 0, equal = 0;
  double max_abs = 0, max_rel = 0, tolerance = -1;
  bool added = false;  // judged by added error: its own table has the figures
  bool floats = false, measured = false, unknown = false;  // unknown: other bits, how many was not counted
  std::string where;
  double used() const { return tolerance > 0 ? max_rel / tolerance : max_rel > 0 ? HUGE_VAL : 0; }
};

std::string share_used(double used) { return used > 100 ? fmt::format("{:.3g} x", used) : fmt::format("{:.0f}%", std::ceil(100 * used)); }

class Renderer {
 public:
  Renderer(const std::vector<Json>& records, bool color, bool verbose) : records_(records), color_(color), verbose_(verbose) {
    for (const Json& r : records) {
      const std::string kind = text(r, "record");
      if (kind == "compare") head_ = &r;
      if (kind == "summary") summary_ = &r;
    }
  }

  std::string run() {
    if (!head_ || !summary_) return "no comparison in these records\n";
    verdict();
    sides();
    phases();
    added();
    failures();
    greedy();
    routing();
    topk();
    levels();
    next();
    return out_;
  }

 private:
  std::string paint(const char* code, const std::string& s) const { return color_ ? fmt::format("\033[{}m{}\033[0m", code, s) : s; }
  int64_t count(const char* key) const { return summary_->at(key).get<int64_t>(); }

  void verdict() {
    const Json& s = *summary_;
    const std::string level = text(s, "level");
    const bool pass = s.at("exit_code") == 0;
    std::string line = pass ? paint("32", "PASS") : paint("31", "FAIL");
    line += " " + level;
    if (s.at("partial").get<bool>()) line += " (partial)";
    const int64_t near = count("near_ties"), most = count("max_near_ties");
    if (!pass && s.at("first_divergence").is_object()) {
      line += ": first at " + text(s.at("first_divergence"), "text");
    } else if (!pass && count("compared") == 0) {
      line += ": nothing was compared";
    } else if (!pass && near > most) {
      line += fmt::format(": {} near ties, at most {} allowed", near, most);
    } else {
      line += fmt::format(": {} compared", count("compared"));
      if (count("skipped") > 0 && level != "greedy_prefix") line += fmt::format(", {} skipped", count("skipped"));
      if (near > 0) line += fmt::format(", {} near tie{} (at most {} allowed)", near, near == 1 ? "" : "s", most);
    }
    out_ += line + "\n\n";
  }

  void sides() {
    for (const char* side : {"base", "target"}) {
      const Json& j = head_->at(side);
      const std::string kind = text(j, "kind") == "official_case" ? "official case" : text(j, "kind");
      out_ += fmt::format("  {:<10} {}  ({}{}{})\n", side, text(j, "path"), kind,
                          text(j, "mode") == "full" ? "" : ", mode " + text(j, "mode"),
                          j.at("partial").get<bool>() && kind == "dump" ? ", partial" : "");
    }
    const Json& t = head_->at("tolerance");
    if (text(*head_, "level") != "byte_exact") {
      std::string line = text(t, "preset").empty() ? "none" : text(t, "preset");
      const double factor = number(t.at("noise_factor")), fixed = number(t.at("fixed"));
      if (factor > 0) line += fmt::format(", {:g} x the {} noise floor", factor, text(t, "floor"));
      if (fixed > 0) line += fmt::format("{} {:g}", factor > 0 ? ", at least" : ",", fixed);
      if (number(t.at("cache_ulp")) > 0) {
        line += fmt::format(", plus {:g} ULP of the caches' type ({:.2e} each)", number(t.at("cache_ulps")), number(t.at("cache_ulp")));
      }
      for (const auto& [phase, x] : t.at("by_phase").items()) line += fmt::format(", {} {:g}", phase, number(x));
      out_ += fmt::format("  {:<10} {}\n", "tolerance", line);
      if (hides_faults())
        out_ += fmt::format("  {:<10} {}\n", "", "of accumulated error, which hides faults: with --model each node is judged by itself");
    }
    for (const Json& r : records_) {
      if (text(r, "record") == "warning") out_ += fmt::format("  {:<10} {}\n", "warning", text(r, "text"));
    }
    out_ += "\n";
  }

  void read_phases() {
    for (const Json& r : records_) {
      if (text(r, "record") != "tensor") continue;
      const std::string phase = text(r, "phase");
      if (!lines_.contains(phase)) order_.push_back(phase);
      PhaseLine& l = lines_[phase];
      if (text(r, "status") == "skipped" && text(r, "kind") != "not_required") {
        l.skipped++;
        continue;
      }
      l.n++;
      l.failed += text(r, "status") == "fail";
      l.added = l.added || r.contains("added_limit");
      l.floats = l.floats || text(r.at("dtype"), "base").find('F') != std::string::npos;
      if (!r.contains("metrics")) {
        if (text(r, "reached") == "byte_exact") {  // equal by hash: as good as counted
          l.elements += elements_of(r);
          l.equal += elements_of(r);
        } else {
          l.unknown = true;
        }
        continue;
      }
      const Json& m = r.at("metrics");
      l.measured = true;
      l.elements += m.at("elements").get<int64_t>();
      l.equal += m.at("bits_equal").get<int64_t>();
      if (!r.at("tolerance").is_null()) l.tolerance = std::max(l.tolerance, number(r.at("tolerance")));
      l.max_abs = std::max(l.max_abs, number(m.at("max_abs")));
      if (number(m.at("max_rel")) > l.max_rel) {
        l.max_rel = number(m.at("max_rel"));
        const std::string name = text(r, "name");
        const size_t cut = name.rfind('/');
        l.where = (cut == std::string::npos ? name : name.substr(0, cut)) + ": " + text(m.at("max_rel_at"), "text");
      }
    }
    // In the order of the forward pass, caches behind it; the prompts of a case do not all begin with the first phase.
    std::stable_sort(order_.begin(), order_.end(), [](const auto& a, const auto& b) { return phase_order(a) < phase_order(b); });
  }

  /// Everything if verbose; else the phases that failed, or of a pass those closest to their tolerance. The others in a line.
  void phases() {
    read_phases();
    std::vector<std::string> shown, rest;
    const bool pass = summary_->at("exit_code") == 0;
    for (const std::string& p : order_) {
      const PhaseLine& l = lines_.at(p);
      const bool fits = (verbose_ && !l.added) || (!pass && !l.added && l.failed > 0 && shown.size() < kMostPhases) ||
                        (pass && l.measured && l.tolerance >= 0 && l.max_rel > 0 && l.floats);
      (fits ? shown : rest).push_back(p);
    }
    if (pass && !verbose_ && shown.size() > kClosest) {
      std::vector<std::string> by_use = shown;
      std::stable_sort(by_use.begin(), by_use.end(), [&](const auto& a, const auto& b) { return lines_.at(a).used() > lines_.at(b).used(); });
      by_use.resize(kClosest);
      const auto far = [&](const std::string& p) { return std::find(by_use.begin(), by_use.end(), p) == by_use.end(); };
      std::copy_if(shown.begin(), shown.end(), std::back_inserter(rest), far);
      std::erase_if(shown, far);
    }
    Table table({"phase", "n", "failed", "max_abs", "max_rel", "tolerance", "used", "bits equal", "where the worst row is"}, 8);
    for (const std::string& phase : shown) {
      const PhaseLine& l = lines_.at(phase);
      const std::string bits = l.unknown || l.elements == 0
                                   ? "-"
                                   : fmt::format("{:.1f}%", std::floor(1000.0 * double(l.equal) / double(l.elements)) / 10);
      std::string n = std::to_string(l.n);
      if (l.skipped > 0) n += fmt::format(" (+{} skipped)", l.skipped);
      std::vector<std::string> row = {phase, n, std::to_string(l.failed)};
      if (l.measured && !l.floats) {
        row.insert(row.end(), {"-", "-", "exact", "-"});
      } else if (!l.measured) {
        row.insert(row.end(), {"-", "-", "-", "-"});
      } else {
        row.insert(row.end(), {figure(l.max_abs), figure(l.max_rel), l.tolerance < 0 ? "none" : figure(l.tolerance),
                               l.tolerance > 0 ? share_used(l.used()) : "-"});
      }
      row.push_back(bits);
      row.push_back(l.where);
      table.add(std::move(row));
    }
    if (!table.empty()) out_ += table.str();
    others(rest);
    if (!order_.empty()) out_ += "\n";
  }

  /// One line for the phases that the table leaves out.
  void others(const std::vector<std::string>& rest) {
    size_t equal = 0, passed = 0, failed = 0, shown = 0, skipped = 0, added = 0;
    double used = 0;
    for (const std::string& p : rest) {
      const PhaseLine& l = lines_.at(p);
      if (l.added) {
        added++;
      } else if (l.failed > 0) {
        failed++;
      } else if (l.n == 0) {
        skipped++;
      } else if (!l.unknown && l.equal == l.elements) {
        equal++;
      } else if (l.tolerance >= 0) {
        passed++;
        used = std::max(used, l.used());
      } else {
        shown++;  // measured and not judged: greedy_prefix
      }
    }
    std::string line;
    const auto add = [&](size_t n, const std::string& words) {
      if (n > 0) line += fmt::format("{}{} {}", line.empty() ? "" : ", ", n, words);
    };
    add(failed, "more failed");
    add(passed, fmt::format("within {} of their tolerance", share_used(used)));
    add(equal, "equal bit for bit");
    add(added, "judged by the error they add");
    add(shown, "not judged at this level");
    add(skipped, "not compared");
    if (!line.empty()) out_ += fmt::format("  {}: {}\n", rest.size() == order_.size() ? "phases" : "other phases", line);
  }

  /// Of each phase the node that adds most, on both sides. Judged ones are all there; of others those that add most.
  void added() {
    struct Side {
      double most = -1, accumulated = -1;
      std::string name;
    };
    struct Line {
      Side base, target;
      double limit = -1;
      int64_t n = 0, failed = 0;
    };
    std::map<std::string, Line> by_phase;
    for (const Json& r : records_) {
      if (text(r, "record") != "node_error") continue;
      const std::string name = text(r, "name");
      Line& l = by_phase[comparing::phase_key(name)];
      const bool base = text(r, "side") == "base";
      Side& s = base ? l.base : l.target;
      if (!base) l.n++, l.failed += text(r, "status") == "fail";
      if (!r.at("limit").is_null()) l.limit = std::max(l.limit, number(r.at("limit")));
      if (!r.at("accumulated").is_null()) s.accumulated = std::max(s.accumulated, number(r.at("accumulated")));
      if (number(r.at("added")) > s.most) s.most = number(r.at("added")), s.name = name;
    }
    if (by_phase.empty()) return;
    std::vector<std::string> order;
    bool base = false, limits = false, accumulated = false;
    for (const auto& [phase, l] : by_phase) {
      order.push_back(phase);
      base = base || l.base.most >= 0;
      limits = limits || l.limit >= 0;
      accumulated = accumulated || l.target.accumulated >= 0;
    }
    std::sort(order.begin(), order.end(), [](const auto& a, const auto& b) { return std::pair(phase_order(a), a) < std::pair(phase_order(b), b); });
    const auto cell = [](double x) { return x < 0 ? std::string("-") : figure(x); };
    std::vector<std::string> head = {"added error", "n", "failed"};
    if (base) head.push_back("base");
    head.push_back("target");
    if (limits) head.insert(head.end(), {"limit", "used"});
    if (accumulated) head.push_back("accumulated");
    head.push_back("where the target adds most");
    const size_t figures = head.size() - 1;
    Table table(std::move(head), figures);
    for (const std::string& phase : order) {
      const Line& l = by_phase.at(phase);
      std::vector<std::string> row = {phase, std::to_string(l.n), limits ? std::to_string(l.failed) : "-"};
      if (base) row.push_back(cell(l.base.most));
      row.push_back(cell(l.target.most));
      if (limits) row.insert(row.end(), {cell(l.limit), l.limit > 0 ? share_used(l.target.most / l.limit) : "-"});
      if (accumulated) row.push_back(cell(l.target.accumulated));
      row.push_back(l.target.name);
      table.add(std::move(row));
    }
    out_ += table.str() + fmt::format("  added: by each node on its own inputs, against float64; {} error is shown and decides nothing\n\n",
                                      limits ? "accumulated" : "this");
  }

  /// From the first divergence on, in execution order; what stands before it in another prompt comes last.
  void failures() {
    std::vector<const Json*> failed, skipped;
    const Json& d = summary_->at("first_divergence");
    size_t first = 0;
    for (const Json& r : records_) {
      if (text(r, "record") != "tensor") continue;
      if (text(r, "status") == "fail") {
        if (d.is_object() && text(r, "name") == text(d, "name")) first = failed.size();
        failed.push_back(&r);
      } else if (text(r, "status") == "skipped" && text(r, "kind") != "not_required") {
        skipped.push_back(&r);
      }
    }
    std::rotate(failed.begin(), failed.begin() + ptrdiff_t(first), failed.end());
    const size_t shown = verbose_ ? failed.size() : std::min(failed.size(), kMostLines);
    for (size_t i = 0; i < shown; i++) {
      out_ += fmt::format("  {}  {}: {}\n", paint("31", "fail"), text(*failed[i], "name"), text(*failed[i], "reason"));
    }
    if (shown < failed.size()) out_ += fmt::format("  ... and {} more; --verbose names them\n", failed.size() - shown);
    if (verbose_) {
      for (const Json* r : skipped) out_ += fmt::format("  skip  {}: {}\n", text(*r, "name"), text(*r, "reason"));
      extras();
    } else if (!skipped.empty()) {
      out_ += fmt::format("  skip  {}{}: {}\n", text(*skipped[0], "name"),
                          skipped.size() > 1 ? fmt::format(" and {} more", skipped.size() - 1) : "", text(*skipped[0], "reason"));
    }
    if (!failed.empty() || !skipped.empty()) out_ += "\n";
  }

  void extras() {
    for (const Json& r : records_) {
      if (text(r, "record") != "tensor" || !r.contains("extra")) continue;
      const Json& e = r.at("extra");
      out_ += fmt::format("  more  {}: cosine {:.9g}, worst row {:.9g}, NMSE {}, element-wise {}", text(r, "name"),
                          number(e.at("cosine")), number(e.at("worst_row_cosine")), figure(number(e.at("nmse"))),
                          figure(number(e.at("max_elementwise_rel"))));
      if (e.contains("logits")) {
        const Json& l = e.at("logits");
        out_ += fmt::format(", KL mean {} max {}, top-1 {}/{}, top-5 {}/{}, least margin {:.4g}", figure(number(l.at("kl_mean"))),
                            figure(number(l.at("kl_max"))), l.at("top1_agree").get<int64_t>(), l.at("rows").get<int64_t>(),
                            l.at("top5_agree").get<int64_t>(), l.at("rows").get<int64_t>(), number(l.at("min_margin")));
      }
      out_ += "\n";
    }
  }

  /// A row per prompt that is not simply equal; the others in a line. All of them if verbose.
  void greedy() {
    Table table({"greedy ids", "in common", "status", "least margin", "remark"}, 4);
    int64_t prompts = 0, ids = 0;
    double least = HUGE_VAL;
    for (const Json& r : records_) {
      if (text(r, "record") != "greedy") continue;
      const double margin = r.at("min_margin").is_null() ? HUGE_VAL : number(r.at("min_margin"));
      if (!verbose_ && text(r, "status") == "pass") {
        prompts++;
        ids += r.at("length").get<int64_t>();
        least = std::min(least, margin);
        continue;
      }
      std::string remark = text(r, "reason");
      for (const Json& f : r.at("flips")) {
        if (!f.at("near_tie").get<bool>()) continue;
        remark += fmt::format("{}near tie at step {}: {} for {}, margin {:.3g}, noise {:.3g}", remark.empty() ? "" : "; ",
                              f.at("step").get<int64_t>(), f.at("target_id").get<int64_t>(), f.at("base_id").get<int64_t>(),
                              number(f.at("margin")), number(f.at("noise")));
      }
      table.add({text(r, "prompt"), fmt::format("{}/{}", r.at("prefix").get<int64_t>(), r.at("length").get<int64_t>()),
                 text(r, "status"), std::isinf(margin) ? "-" : fmt::format("{:.4g}", margin), remark});
    }
    if (!table.empty()) out_ += table.str();
    if (prompts > 0) {
      out_ += fmt::format("  greedy ids: all {} equal in {} {}prompt{}{}\n", ids, prompts, table.empty() ? "" : "other ",
                          prompts == 1 ? "" : "s", std::isinf(least) ? "" : fmt::format(", least margin {:.4g}", least));
    }
    if (!table.empty() || prompts > 0) out_ += "\n";
  }

  void routing() {
    if (count("choices") == 0) return;
    int64_t shown = 0;
    out_ += fmt::format("  experts: {} of {} choices differ{}\n", count("flips"), count("choices"),
                        count("flips") == 0 ? "" : fmt::format(" (regret at most {:g}, at most {:g}% of them)", number(head_->at("tolerance").at("regret_cap")),
                                                               100 * number(head_->at("tolerance").at("max_flip_share"))));
    for (const Json& r : records_) {
      if (text(r, "record") != "routing") continue;
      if (verbose_ || shown++ < 3)
        out_ += fmt::format("    {:<8} {}: {}\n", text(r, "status") == "fail" ? paint("31", "FAIL") : "admitted", text(r, "name"), text(r, "reason"));
    }
    const auto behind = std::count_if(records_.begin(), records_.end(), [](const Json& r) { return text(r, "record") == "tensor" && text(r, "kind") == "other_experts"; });
    if (behind > 0)
      out_ += fmt::format("    {} tensors behind them were not compared; held against a baseline that runs with the target's experts they are:\n"
                          "    assay dump MODEL --backend oracle --force-experts {} --out FORCED\n", behind, text(head_->at("target"), "path"));
    if (!verbose_ && shown > 3) out_ += fmt::format("    and {} more passes and layers (--verbose)\n", shown - 3);
    out_ += "\n";
  }

  void topk() {
    std::map<int64_t, std::array<int64_t, 4>> by_k;
    double worst = 0;
    for (const Json& r : records_) {
      if (text(r, "record") != "topk") continue;
      auto& t = by_k[r.at("k").get<int64_t>()];
      size_t i = 0;
      for (const char* key : {"rows", "top1", "order", "common"}) t[i++] += r.at(key).get<int64_t>();
      worst = std::max(worst, number(r.at("values_max_abs")));
    }
    for (const auto& [k, t] : by_k) {
      out_ += fmt::format("  top-{} logits (reported, not judged): best id equal in {}/{} rows, all {} in order in {}/{}, {}/{} ids in "
                          "common, max_abs {}\n\n",
                          k, t[1], t[0], k, t[2], t[0], t[3], t[0] * k, figure(worst));
    }
  }

  void levels() {
    const Json& s = *summary_;
    const std::string reached = s.at("reached").is_null() ? "none" : text(s, "reached");
    out_ += fmt::format("  {:<10} {}  (asked for {})\n", "reached", reached, text(s, "level"));
    std::string line = fmt::format("{}, {} failed, {} skipped, {} missing, {} extra", count("compared"), count("failed"),
                                   count("skipped"), count("missing"), count("extra"));
    if (count("near_ties") > 0) line += fmt::format(", {} near ties", count("near_ties"));
    if (count("bytes_read") > 0) line += ", " + bytes_text(uint64_t(count("bytes_read"))) + " read";
    out_ += fmt::format("  {:<10} {}\n", "compared", line);
    if (text(s, "level") == "byte_exact" && count("bytes_read") == 0 && count("compared") > 0)
      out_ += fmt::format("  {:<10} {}\n", "by hashes", "values were not read; assay inspect DIR --verify holds them against their hashes");
    const double least = number(s.at("smallest_passing_tolerance"));
    const bool by_added = number(head_->at("tolerance").at("unit")) > 0 &&
                          std::any_of(records_.begin(), records_.end(), [](const Json& r) { return r.contains("added_limit"); });
    if (!by_added && (text(s, "level") != "byte_exact" || reached != "byte_exact")) {
      out_ += fmt::format("  {:<10} {}\n", "would pass", std::isinf(least) ? "at no tolerance: see the reasons above"
                                                                          : fmt::format("at --tol {:.4g}", least));
    }
  }

  /// A low-precision target judged by accumulated error alone.
  bool hides_faults() const {
    return number(head_->at("tolerance").at("unit")) > 0 && text(*head_, "level") == "max_rel" &&
           std::none_of(records_.begin(), records_.end(), [](const Json& r) { return r.contains("added_limit"); });
  }

  void next() {
    const Json& s = *summary_;
    const std::string base = shell_word(text(head_->at("base"), "path")), target = shell_word(text(head_->at("target"), "path"));
    std::string line;
    const std::string kept = head_->contains("arguments") ? " " + text(*head_, "arguments") : "";
    const bool maps = kept.find(" --map ") != std::string::npos || kept.find(" --only ") != std::string::npos;
    if (s.at("exit_code") != 0) {
      const Json& d = s.at("first_divergence");
      if (count("compared") == 0) {
        line = fmt::format("assay inspect {}", target);
      } else if (d.is_object() && text(d, "kind") == "missing") {
        line = 10 * count("missing") > 9 * count("compared") ? fmt::format("assay map --suggest {} {}   (other names?)", base, target)
                                                            : fmt::format("assay inspect {} --tensors", target);
      } else if (d.is_object() && text(s, "level") != "greedy_prefix" && text(d, "kind") != "greedy" && !maps) {
        line = fmt::format("assay bisect {} {} --level {}{}", base, target, text(s, "level"), kept);
      } else if (d.is_object() && !verbose_ && text(d, "kind") != "greedy") {
        line = fmt::format("assay compare {} {} --level {}{} --until {} --verbose", base, target, text(s, "level"), kept, shell_word(text(d, "name")));
      } else if (!verbose_) {
        line = fmt::format("assay compare {} {} --level {}{} --verbose", base, target, text(s, "level"), kept);
      } else {
        line = fmt::format("assay inspect {}", target);
      }
    } else if (text(s, "level") != "byte_exact" && s.at("reached") == "byte_exact") {
      line = fmt::format("assay compare {} {} --level byte_exact   (it holds, and may be required)", base, target);
    } else if (hides_faults()) {
      line = fmt::format("assay compare {} {} --level {}{} --model MODEL", base, target, text(s, "level"), kept);
    } else if (!verbose_) {
      line = fmt::format("assay compare {} {} --level {}{} --verbose", base, target, text(s, "level"), kept);
    }
    if (!line.empty()) out_ += fmt::format("\n  {:<10} {}\n", "next", line);
  }

  const std::vector<Json>& records_;
  const bool color_, verbose_;
  const Json* head_ = nullptr;
  const Json* summary_ = nullptr;
  std::vector<std::string> order_;
  std::map<std::string, PhaseLine> lines_;
  std::string out_;
};

}  // namespace
}  // namespace assay::report

std::string assay::render_text(const std::vector<nlohmann::ordered_json>& records, bool color, bool verbose) {
  return report::Renderer(records, color, verbose).run();
}
