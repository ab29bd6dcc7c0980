#include <algorithm>
#include <cmath>
#include <cstring>

#include "dumps/error.h"
#include "engine/mtp.h"

namespace assay {

std::optional<int32_t> argmax(std::span<const float> logits) {
  int32_t best = 0;
  for (size_t i = 0; i < logits.size(); i++) {
    if (std::isnan(logits[i])) return std::nullopt;
    if (logits[i] > logits[best]) best = int32_t(i);
  }
  return best;
}

std::string NonFinite::text() const {
  return "prompt" + std::to_string(prompt) + "/" + std::string(name_of(pass)) + "/" + std::to_string(step) + "/" +
         (layer < 0 ? "" : "layer." + std::to_string(layer) + "/") + phase + ", position " + std::to_string(position) +
         ", column " + std::to_string(column) + ": " + (std::isnan(value) ? "nan" : value < 0 ? "-inf" : "inf");
}

namespace {

constexpr int64_t kMaxDecode = int64_t(1) << 31;

/// Passes values on and remembers, per prompt, the first that is not finite.
class FiniteWatch : public Observer {
 public:
  explicit FiniteWatch(size_t prompts) : first(prompts) {}
  void value(const Batch& batch, const Node& node, const float* data, std::span<const int64_t> rows, int64_t columns) override {
    size_t segment = 0;
    int64_t start = 0;
    for (size_t r = 0; r < rows.size(); r++) {
      while (rows[r] >= start + batch.segments[segment].rows) start += batch.segments[segment++].rows;
      const Segment& s = batch.segments[segment];
      if (first[s.prompt]) continue;
      for (int64_t c = 0; c < columns; c++)
        if (!std::isfinite(data[r * columns + c])) {
          first[s.prompt] = {batch.pass, s.prompt, s.step, node.layer, node.phase, s.position + rows[r] - start, c,
                             data[r * columns + c]};
          break;
        }
    }
  }
  std::vector<std::optional<NonFinite>> first;
};

struct Timeline {
  const Request* request;
  int32_t prompt;
  int slot;
  int64_t prefilled = 0, step = 0;   // rows of the prompt done; decode passes done
  bool stopped = false;
};

class Driver {
 public:
  Driver(Engine& engine, const GenerateOptions& options, GenerateObserver* observer, Trace* trace, size_t prompts)
      : engine_(engine), options_(options), observer_(observer), trace_(trace), out_(prompts) {
    options_.mtp = options_.mtp && engine.has_mtp();
  }

  void run(std::vector<Timeline> lines) {
    for (const Timeline& t : lines) engine_.truncate(t.slot, 0);
    while (std::any_of(lines.begin(), lines.end(), [](auto& t) { return t.prefilled < int64_t(t.request->ids.size()); }))
      prefill_pass(lines);
    while (std::any_of(lines.begin(), lines.end(), [](auto& t) { return wants_decode(t); })) decode_pass(lines);
  }
  std::vector<Generated> take() { return std::move(out_); }

 private:
  static bool wants_decode(const Timeline& t) { return !t.stopped && t.step < t.request->decode; }

  void prefill_pass(std::vector<Timeline>& lines) {
    Batch batch;
    batch.pass = Pass::prefill;
    std::vector<Timeline*> part;
    std::vector<int64_t> last_row;  // of each part, in the batch; -1: its prompt is not complete yet
    for (Timeline& t : lines) {
      const int64_t left = int64_t(t.request->ids.size()) - t.prefilled;
      if (left == 0) continue;
      const int64_t n = options_.chunk > 0 ? std::min(left, options_.chunk) : left, first = batch.rows();
      batch.segments.push_back({t.slot, t.prefilled, n, t.prompt, 0});
      batch.experts.push_back(t.request->experts);
      batch.ids.insert(batch.ids.end(), t.request->ids.begin() + t.prefilled, t.request->ids.begin() + t.prefilled + n);
      for (int64_t r = 0; r < n; r++)
        if (options_.all_logits || (n == left && r == n - 1)) batch.logit_rows.push_back(first + r);
      part.push_back(&t);
      last_row.push_back(n == left ? first + n - 1 : -1);
    }
    const float* logits = pass(batch);
    const std::vector<float> hidden(engine_.hidden().begin(), engine_.hidden().end());
    for (size_t i = 0; i < part.size(); i++) {
      part[i]->prefilled += batch.segments[i].rows;
      if (last_row[i] >= 0) choose(*part[i], batch, last_row[i], logits);
    }
    int64_t first = 0;
    for (size_t i = 0; i < part.size(); first += batch.segments[i++].rows) {
      if (options_.mtp) mtp_prefill(*part[i], batch.segments[i], std::span(hidden).subspan(size_t(first * width()), size_t(batch.segments[i].rows * width())));
      if (last_row[i] < 0) continue;
      if (observer_) observer_->after_prefill(engine_, part[i]->prompt, part[i]->slot);
      finish_if_done(*part[i]);
    }
  }

  void decode_pass(std::vector<Timeline>& lines) {
    Batch batch;
    batch.pass = Pass::decode;
    std::vector<Timeline*> part;
    for (Timeline& t : lines) {
      if (!wants_decode(t)) continue;
      const std::vector<int32_t>& forced = t.request->forced;
      batch.ids.push_back(size_t(t.step) < forced.size() ? forced[t.step] : out_[t.prompt].greedy.back());
      out_[t.prompt].fed.push_back(batch.ids.back());
      batch.segments.push_back({t.slot, int64_t(t.request->ids.size()) + t.step, 1, t.prompt, t.step});
      batch.experts.push_back(t.request->experts);
      batch.logit_rows.push_back(int64_t(part.size()));
      part.push_back(&t);
    }
    const float* logits = pass(batch);
    const std::vector<float> hidden(engine_.hidden().begin(), engine_.hidden().end());
    for (size_t i = 0; i < part.size(); i++) {
      part[i]->step++;
      choose(*part[i], batch, int64_t(i), logits);
    }
    for (size_t i = 0; i < part.size(); i++) {
      if (options_.mtp) mtp_decode(*part[i], batch.segments[i], std::span(hidden).subspan(i * size_t(width()), size_t(width())));
      finish_if_done(*part[i]);
    }
  }

  int64_t width() const { return engine_.has_mtp() ? engine_.model().config.hidden : 0; }

  /// The id that is fed behind `step` decode passes; -1: none is known.
  int32_t next_id(const Timeline& t) const {
    const std::vector<int32_t>& forced = t.request->forced;
    if (size_t(t.step) < forced.size()) return forced[size_t(t.step)];
    return t.stopped || out_[t.prompt].greedy.empty() ? -1 : out_[t.prompt].greedy.back();
  }

  /// The head's rows of a prompt's chunk, each with the token behind it; behind the last chunk two drafts, on a copy of the cache:
  /// their rows are taken away again.
  void mtp_prefill(Timeline& t, const Segment& s, std::span<const float> hidden) {
    const std::vector<int32_t>& ids = t.request->ids;
    const int64_t end = s.position + s.rows, length = int64_t(ids.size());
    std::vector<int32_t> next(ids.begin() + s.position + 1, ids.begin() + std::min(end + 1, length));
    if (end == length) {
      if (next_id(t) < 0) return;
      next.push_back(next_id(t));
    }
    mtp_pass(engine_, Pass::mtp_prefill, s, hidden, next, observer_, trace_);
    if (end != length) return;
    out_[t.prompt].mtp_drafts = mtp_draft(engine_, t.slot, t.prompt, engine_.greedy(0), 3, observer_, trace_);
    engine_.truncate_mtp(t.slot, length);
  }

  void mtp_decode(Timeline& t, Segment s, std::span<const float> hidden) {
    const int32_t next = next_id(t);
    if (next < 0 || engine_.mtp_length(t.slot) != s.position) return;
    mtp_pass(engine_, Pass::mtp_decode, s, hidden, {&next, 1}, observer_, trace_);
    out_[t.prompt].mtp_ids.push_back(engine_.greedy(0));
  }

  const float* pass(const Batch& batch) { return engine_.forward(batch, observer_, trace_); }

  /// Takes the greedy id of a timeline's last row; a NaN stops the timeline unless its next id is forced.
  void choose(Timeline& t, const Batch& batch, int64_t row, const float* logits) {
    const int64_t vocab = engine_.model().config.vocab;
    const int64_t at = std::lower_bound(batch.logit_rows.begin(), batch.logit_rows.end(), row) - batch.logit_rows.begin();
    Generated& g = out_[t.prompt];
    g.last_logits.assign(logits + at * vocab, logits + (at + 1) * vocab);
    const int32_t id = engine_.greedy(at);
    if (id >= 0) {
      g.greedy.push_back(id);
      return;
    }
    if (!g.non_finite) g.non_finite = locate(t);
    if (int64_t(t.request->forced.size()) >= std::min(t.step + 1, t.request->decode) && t.request->decode > 0)
      g.greedy.push_back(-1);  // no id is chosen; the forced one is fed, or the last pass is done
    else
      t.stopped = true;
  }

  /// Runs the timeline again from its start, same ids, to find the first value that is not finite: bits do not depend on
  /// how rows are cut into passes, so the fault appears again where it was.
  NonFinite locate(const Timeline& t) {
    std::vector<int32_t> ids = t.request->ids;
    ids.insert(ids.end(), out_[t.prompt].fed.begin(), out_[t.prompt].fed.end());
    engine_.truncate(t.slot, 0);
    FiniteWatch watch(out_.size());
    const int64_t prompt_rows = int64_t(t.request->ids.size());
    auto run = [&](Pass p, int64_t position, int64_t rows, int64_t step) {
      Batch b;
      b.pass = p;
      b.ids.assign(ids.begin() + position, ids.begin() + position + rows);
      b.segments = {{t.slot, position, rows, t.prompt, step}};
      b.experts = {t.request->experts};
      b.logit_rows = {rows - 1};
      engine_.forward(b, &watch);
    };
    run(Pass::prefill, 0, prompt_rows, 0);
    for (int64_t s = 0; s < t.step; s++) run(Pass::decode, prompt_rows + s, 1, s);
    if (!watch.first[t.prompt])
      throw Error(ErrorKind::internal, "prompt" + std::to_string(t.prompt), "logits hold a NaN that a second run does not show");
    return *watch.first[t.prompt];
  }

  void finish_if_done(const Timeline& t) {
    if (observer_ && !wants_decode(t) && t.prefilled == int64_t(t.request->ids.size()))
      observer_->after_decode(engine_, t.prompt, t.slot, out_[t.prompt]);
  }

  Engine& engine_;
  GenerateOptions options_;
  GenerateObserver* observer_;
  Trace* trace_;
  std::vector<Generated> out_;
};

}  // namespace

void check_requests(const Engine& engine, std::span<const Request> requests, const GenerateOptions& options) {
  const int slots = engine.options().slots;
  if (options.batch && requests.size() > size_t(slots))
    throw Error(ErrorKind::usage, "--batch", "more prompts than slots", "at most " + std::to_string(slots),
                std::to_string(requests.size()));
  if (options.slot < 0 || options.slot >= slots)
    throw Error(ErrorKind::usage, "--slot", "no such slot", "0 to " + std::to_string(slots - 1), std::to_string(options.slot));
  if (options.chunk < 0) throw Error(ErrorKind::usage, "--chunk", "must not be negative", "0 (all) or more", std::to_string(options.chunk));
  for (size_t i = 0; i < requests.size(); i++) {
    const Request& r = requests[i];
    const std::string where = "prompt" + std::to_string(i);
    if (r.ids.empty()) throw Error(ErrorKind::usage, where, "no token ids");
    if (r.decode < 0) throw Error(ErrorKind::usage, "--decode", "must not be negative", ">= 0", std::to_string(r.decode));
    if (r.decode > kMaxDecode) throw Error(ErrorKind::usage, "--decode", "too many passes", "at most 2^31", std::to_string(r.decode));
    if (int64_t(r.forced.size()) > r.decode)
      throw Error(ErrorKind::usage, where, "more forced ids than decode passes", std::to_string(r.decode) + " at most", std::to_string(r.forced.size()));
    const int64_t need = int64_t(r.ids.size()) + r.decode;
    if (need > engine.options().context)
      throw Error(ErrorKind::usage, where, "context overflow", std::to_string(need) + " positions (" + std::to_string(r.ids.size()) +
                  " ids + " + std::to_string(r.decode) + " decode steps)",
                  "a context of " + std::to_string(engine.options().context), "A larger --ctx or fewer ids fit.");
    for (const auto* ids : {&r.ids, &r.forced})
      for (size_t k = 0; k < ids->size(); k++)
        if ((*ids)[k] < 0 || (*ids)[k] >= engine.model().config.vocab)
          throw Error(ErrorKind::usage, where + (ids == &r.ids ? ", id " : ", forced id ") + std::to_string(k),
                      "outside the vocabulary", "0 to " + std::to_string(engine.model().config.vocab - 1),
                      std::to_string((*ids)[k]));
  }
}

std::vector<Generated> generate(Engine& engine, std::span<const Request> requests, const GenerateOptions& options,
                                GenerateObserver* observer, Trace* trace) {
  check_requests(engine, requests, options);
  Driver driver(engine, options, observer, trace, requests.size());
  if (options.batch) {
    std::vector<Timeline> all;
    for (size_t i = 0; i < requests.size(); i++) all.push_back({&requests[i], int32_t(i), int(i)});
    driver.run(std::move(all));
  } else {
    for (size_t i = 0; i < requests.size(); i++) driver.run({{&requests[i], int32_t(i), options.slot}});
  }
  return driver.take();
}

}  // namespace assay
