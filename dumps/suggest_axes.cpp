#include "dumps/suggest_axes.h"

#include <fmt/format.h>

#include <algorithm>

namespace assay::suggesting {
namespace {

// Which part each column belongs to: runs, perhaps over and over.
struct Parts {
  std::vector<int> tensors;      // ours, in their order
  std::vector<int64_t> lengths;  // columns of each in a period
  int64_t period = 0, times = 1;
};

Parts parts_of_hits(const std::vector<Hit>& hits, const std::vector<int>& known) {
  std::vector<int> of;  // strays count to their neighbours
  for (const Hit& h : hits) {
    const bool is_known = std::find(known.begin(), known.end(), h.tensor) != known.end();
    of.push_back(is_known ? h.tensor : of.empty() ? known[0] : of.back());
  }
  Parts out;
  out.period = int64_t(of.size());
  for (int64_t p = 1; known.size() > 1 && p < int64_t(of.size()); ++p) {
    if (int64_t(of.size()) % p) continue;
    bool repeats = true;
    for (size_t i = size_t(p); i < of.size() && repeats; ++i) repeats = of[i] == of[i - size_t(p)];
    if (repeats) {
      out.period = p;
      break;
    }
  }
  out.times = int64_t(of.size()) / out.period;
  for (int64_t i = 0; i < out.period; ++i) {
    if (out.tensors.empty() || out.tensors.back() != of[size_t(i)]) {
      out.tensors.push_back(of[size_t(i)]);
      out.lengths.push_back(0);
    }
    ++out.lengths.back();
  }
  return out;
}

std::string without_sizes(const std::string& axes) {
  std::string out;
  for (size_t i = 0; i < axes.size(); ++i) {
    if (axes[i] != ':') {
      out += axes[i];
      continue;
    }
    while (i + 1 < axes.size() && axes[i + 1] >= '0' && axes[i + 1] <= '9') ++i;
  }
  return out;
}

std::string spaced(std::initializer_list<std::string> words) {
  std::string out;
  for (const std::string& w : words) {
    if (!w.empty()) out += (out.empty() ? "" : " ") + w;
  }
  return out;
}

class Writer {
 public:
  Writer(const DumpTensor& t, const Seen& seen, const std::vector<std::vector<Hit>>& ranks, const Index& index,
         std::string token)
      : t_(t),
        seen_(seen),
        ranks_(ranks),
        index_(index),
        token_(std::move(token)),
        rank_(ranks.size() > 1 ? "R" : "") {}

  AxesText run() {
    AxesText out;
    const std::vector<int> known = tensors_of(seen_.hits);
    parts_ = parts_of_hits(seen_.hits, known);
    for (int tensor : parts_.tensors) out.names.push_back(index_.names()[size_t(tensor)]);
    if (parts_.tensors.size() != known.size()) {
      out.problem = fmt::format("its columns lie in {} tensors of ours, in no order that is known", known.size());
      return out;
    }
    for (size_t i = 0; i < t_.shape.size(); ++i) {
      const bool special = std::find(seen_.special.begin(), seen_.special.end(), i) != seen_.special.end();
      if (!special && t_.shape[i] != 1) free_.push_back(i);
    }
    // The parts lie along an axis of their own ([2, page, slot, ...]), or within one axis.
    own_axis_ = parts_.tensors.size() > 1 && parts_.times == 1 && free_.size() > 1 &&
                t_.shape[free_[0]] == int64_t(parts_.tensors.size());
    const size_t axes = free_.size() - (own_axis_ ? 1 : 0);
    if (axes > 2 || (axes == 2 && parts_.tensors.size() > 1 && !own_axis_)) {
      out.problem = "more axes than can be told";
      return out;
    }
    out.problem = find_orders();
    if (out.problem.empty())
      out.problem = parts_.times > 1 ? alternating() : own_axis_ || axes == 2 ? shared(axes) : behind_another();
    if (out.problem.empty()) out.clause = clause();
    return out;
  }

 private:
  std::string find_orders() {
    int64_t begin = 0;
    for (size_t p = 0; p < parts_.tensors.size(); ++p) {
      std::vector<std::vector<int64_t>> local;
      for (const std::vector<Hit>& rank : ranks_) {
        local.emplace_back();
        for (int64_t o = 0; o < parts_.times; ++o) {
          for (int64_t i = 0; i < parts_.lengths[p]; ++i) {
            const Hit& h = rank[size_t(o * parts_.period + begin + i)];
            local.back().push_back(h.tensor == parts_.tensors[p] ? h.column : -1);
          }
        }
      }
      begin += parts_.lengths[p];
      orders_.push_back(find_order(local, own_axis_ ? "" : std::string(1, char('a' + p % 26))));
      if (orders_.back().agreed < 0.9 || (parts_.times > 1 && !orders_.back().plain)) {
        return fmt::format("its columns lie in {}, in no order that is known",
                           index_.names()[size_t(parts_.tensors[p])]);
      }
    }
    return {};
  }

  std::string ours_of(const std::string& block, const std::string& inner) const {
    if (token_ == "position")
      return fmt::format("({}) position ({})", spaced({rank_, block}).empty() ? "1" : spaced({rank_, block}), inner);
    return fmt::format("{} ({})", token_, spaced({rank_, block, inner}));
  }

  // gate and up column by column: (o (1|1)).
  std::string alternating() {
    if (free_.size() != 1) return "parts that alternate over several axes";
    std::string parts;
    for (size_t p = 0; p < orders_.size(); ++p) {
      const std::string name = parts_.lengths[p] == 1 ? "" : fmt::format("f{}", char('a' + p % 26));
      parts += (p ? " | " : "") + (name.empty() ? std::string("1") : fmt::format("{}:{}", name, parts_.lengths[p]));
      ours_.push_back(fmt::format("{} ({})", token_, spaced({rank_, "o", name})));
    }
    texts_ = {fmt::format("(o:{} ({}))", parts_.times, parts)};
    return {};
  }

  // All parts have the same axes; only one order can be that of theirs, parts that are plain keep it.
  std::string shared(size_t axes) {
    size_t lead = 0;
    while (lead + 1 < orders_.size() && orders_[lead].plain) ++lead;
    Order o = orders_[lead];
    if (o.plain) {
      o.theirs_block = o.ours_block = axes == 2 ? "h" : "";
      o.theirs_inner = o.ours_inner = "d";
    } else if (axes == 2 && (o.size != t_.shape[free_.back()] || o.theirs_block.empty())) {
      return "an order of columns across its axes";
    }
    for (const Order& other : orders_) {
      const bool alike =
          other.theirs_block == orders_[lead].theirs_block && other.theirs_inner == orders_[lead].theirs_inner;
      if (alike) {
        ours_.push_back(ours_of(o.ours_block, o.ours_inner));
      } else if (other.plain && o.theirs_block.find('[') == std::string::npos) {
        ours_.push_back(ours_of(o.ours_block, without_sizes(o.theirs_inner)));
      } else {
        return "parts in different orders of one axis";
      }
    }
    if (own_axis_) {
      std::string ones = "(1";
      for (size_t p = 1; p < orders_.size(); ++p) ones += "|1";
      texts_.push_back(ones + ")");
    }
    if (axes == 2) {
      texts_.push_back(o.theirs_block);
      texts_.push_back("(" + o.theirs_inner + ")");
    } else {
      texts_.push_back("(" + spaced({o.theirs_block, o.theirs_inner}) + ")");
    }
    return {};
  }

  std::string behind_another() {
    std::string joined;
    for (size_t p = 0; p < orders_.size(); ++p) {
      joined += (p ? " | " : "") + spaced({orders_[p].theirs_block, orders_[p].theirs_inner});
      ours_.push_back(ours_of(orders_[p].ours_block, orders_[p].ours_inner));
    }
    if (!free_.empty())
      texts_.push_back(orders_.size() == 1 && joined.find(' ') == std::string::npos ? without_sizes(joined)
                                                                                    : "(" + joined + ")");
    return {};
  }

  std::string clause() const {
    std::string theirs, ours;
    size_t at = 0;
    for (size_t i = 0; i < t_.shape.size(); ++i) {
      const auto special = std::find(seen_.special.begin(), seen_.special.end(), i);
      theirs += i ? " " : "";
      if (special != seen_.special.end()) {
        theirs += seen_.special_names[size_t(special - seen_.special.begin())];
      } else {
        theirs += t_.shape[i] == 1 ? "1" : texts_[at++];
      }
    }
    for (size_t p = 0; p < ours_.size(); ++p) ours += (p ? " | " : "") + ours_[p];
    // Ours have the axes of theirs: nothing moves but the parts.
    const bool plain = std::all_of(orders_.begin(), orders_.end(), [](const Order& o) { return o.plain; });
    if (!plain || !rank_.empty() || token_ != "token" || t_.shape.size() != 2 || seen_.special[0] != 0)
      return theirs + " => " + ours;
    return orders_.size() == 1 ? "" : theirs;
  }

  const DumpTensor& t_;
  const Seen& seen_;
  const std::vector<std::vector<Hit>>& ranks_;
  const Index& index_;
  const std::string token_, rank_;
  Parts parts_;
  std::vector<Order> orders_;
  std::vector<size_t> free_;  // axes of columns
  bool own_axis_ = false;
  std::vector<std::string> texts_, ours_;  // of the free axes; layouts of ours
};

}  // namespace

AxesText axes_text(const DumpTensor& t, const Seen& seen, const std::vector<std::vector<Hit>>& ranks,
                   const Index& index, const std::string& token) {
  return Writer(t, seen, ranks, index, token).run();
}

}  // namespace assay::suggesting
