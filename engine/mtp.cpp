#include "engine/mtp.h"

#include <algorithm>

#include "dumps/error.h"

namespace assay {

const float* mtp_pass(Engine& engine, Pass pass, const Segment& segment, std::span<const float> hidden, std::span<const int32_t> ids,
                      Observer* observer, Trace* trace) {
  const std::vector<float> own(hidden.begin(), hidden.end());   // the engine's are gone when the pass begins
  Batch b;
  b.pass = pass;
  b.ids.assign(ids.begin(), ids.end());
  b.segments = {segment};
  b.logit_rows = {segment.rows - 1};
  b.hidden = own.data();
  return engine.forward(b, observer, trace);
}

std::vector<int32_t> mtp_draft(Engine& engine, int slot, int32_t prompt, int32_t first, int64_t most, Observer* observer, Trace* trace) {
  std::vector<int32_t> ids;
  for (int32_t id = first; id >= 0;) {
    ids.push_back(id);
    const int64_t position = engine.mtp_length(slot);
    if (int64_t(ids.size()) >= most || position >= engine.options().context) break;
    const size_t hidden = size_t(engine.model().config.hidden);
    mtp_pass(engine, Pass::mtp_draft, {slot, position, 1, prompt, int64_t(ids.size())}, engine.hidden().last(hidden), {&id, 1}, observer, trace);
    id = engine.greedy(0);
  }
  return ids;
}

namespace {

class Speculator {
 public:
  Speculator(Engine& engine, const Request& request, const SpeculationOptions& o, Observer* observer, Trace* trace)
      : engine_(engine), request_(request), o_(o), observer_(observer), trace_(trace), hidden_(size_t(engine.model().config.hidden)) {
    if (!engine.has_mtp()) throw Error(ErrorKind::usage, "--draft", "the model has no MTP head", "a model with one, or no --draft", engine.model().config.family);
    if (o.draft < 1 || o.draft > 64) throw Error(ErrorKind::usage, "--draft", "out of range", "1 to 64", std::to_string(o.draft));
    if (!request.forced.empty()) throw Error(ErrorKind::usage, "--draft", "ids can't be forced where drafts are verified");
    check_requests(engine, {&request, 1}, {o.chunk, false, o.slot});
    out_.drafted.assign(size_t(o.draft), 0);
    out_.accepted = out_.drafted;
  }

  Speculation run(const std::function<void()>& prefilled) {
    engine_.truncate(o_.slot, 0);
    prefill();
    if (prefilled) prefilled();
    while (int64_t(out_.ids.size()) <= request_.decode) round();
    return std::move(out_);
  }

 private:
  /// Takes row i of the last pass's logits.
  int32_t take(const float* logits, int64_t row) {
    const int32_t id = engine_.greedy(row);
    if (id < 0) throw Error(ErrorKind::numeric, "logits", "hold a NaN", "", "", "assay dump names the first value that is not finite.");
    if (o_.keep_logits) {
      const int64_t vocab = engine_.model().config.vocab;
      out_.logits.insert(out_.logits.end(), logits + row * vocab, logits + (row + 1) * vocab);
    }
    return id;
  }

  /// The prompt's rows, chunk by chunk, and the head's one token behind them.
  void prefill() {
    const int64_t length = int64_t(request_.ids.size());
    for (int64_t at = 0; at < length;) {
      const int64_t n = o_.chunk > 0 ? std::min(o_.chunk, length - at) : length - at;
      Batch b;
      b.ids.assign(request_.ids.begin() + at, request_.ids.begin() + at + n);
      b.segments = {{o_.slot, at, n, 0, 0}};
      const bool last = at + n == length;
      if (last) b.logit_rows = {n - 1};
      const float* logits = engine_.forward(b, observer_, trace_);
      std::vector<int32_t> next(request_.ids.begin() + at + 1, request_.ids.begin() + std::min(at + n + 1, length));
      if (last) {
        out_.ids.push_back(take(logits, 0));
        next.push_back(out_.ids.back());
      }
      const std::vector<float> hidden(engine_.hidden().begin(), engine_.hidden().end());
      mtp_pass(engine_, Pass::mtp_prefill, {o_.slot, at, n, 0, 0}, hidden, next, observer_, trace_);
      at += n;
    }
  }

  /// One verify pass. The head's cache has as many rows as the model's; its last pass's last row is behind the last id.
  void round() {
    const int64_t start = engine_.length(o_.slot), left = request_.decode + 1 - int64_t(out_.ids.size());
    // The last id of all needs no draft behind it.
    const int64_t most = std::min({o_.draft, left - 1, engine_.options().context - start - 1});
    std::vector<int32_t> drafts;
    if (most > 0) drafts = mtp_draft(engine_, o_.slot, 0, engine_.greedy(0), most, observer_, trace_);
    Batch b;
    b.pass = Pass::verify;
    b.ids = {out_.ids.back()};
    b.ids.insert(b.ids.end(), drafts.begin(), drafts.end());
    b.segments = {{o_.slot, start, b.rows(), 0, out_.rounds}};
    for (int64_t r = 0; r < b.rows(); r++) b.logit_rows.push_back(r);
    const float* logits = engine_.forward(b, observer_, trace_);
    out_.rounds++;
    std::vector<int32_t> kept;
    for (int64_t r = 0; r < b.rows(); r++) {
      kept.push_back(take(logits, r));
      if (r == int64_t(drafts.size())) break;
      out_.drafted[size_t(r)]++;
      if (drafts[size_t(r)] != kept.back()) break;
      out_.accepted[size_t(r)]++;
    }
    out_.ids.insert(out_.ids.end(), kept.begin(), kept.end());
    const int64_t rows = int64_t(kept.size());
    const std::vector<float> hidden(engine_.hidden().begin(), engine_.hidden().begin() + rows * int64_t(hidden_));
    engine_.truncate(o_.slot, start + rows);
    engine_.truncate_mtp(o_.slot, start);   // rows of drafts had the head's own hidden states
    mtp_pass(engine_, Pass::mtp_decode, {o_.slot, start, rows, 0, out_.rounds - 1}, hidden, kept, observer_, trace_);
  }

  Engine& engine_;
  const Request& request_;
  const SpeculationOptions& o_;
  Observer* observer_;
  Trace* trace_;
  size_t hidden_;
  Speculation out_;
};

}  // namespace

Speculation speculate(Engine& engine, const Request& request, const SpeculationOptions& options, Observer* observer, Trace* trace,
                      const std::function<void()>& prefilled) {
  return Speculator(engine, request, options, observer, trace).run(prefilled);
}

}  // namespace assay
