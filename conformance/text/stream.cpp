#include "conformance/text/stream.h"

#include <algorithm>
#include <chrono>
#include <utility>

#include "dumps/error.h"

namespace assay {
namespace {

double seconds_since(std::chrono::steady_clock::time_point start) {
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

}  // namespace

std::string_view name_of(Streamed::End e) {
  switch (e) {
    case Streamed::End::eos:
      return "eos";
    case Streamed::End::stop:
      return "stop";
    case Streamed::End::count:
      return "count";
    case Streamed::End::context:
      return "context";
    case Streamed::End::interrupted:
      return "interrupted";
    case Streamed::End::not_finite:
      return "not_finite";
  }
  return "";
}

std::string StopFilter::push(const std::string& piece) {
  if (stopped_) return "";
  held_ += piece;
  size_t cut = std::string::npos;
  for (const std::string& s : stops_) cut = std::min(cut, held_.find(s));
  if (cut != std::string::npos) {
    stopped_ = true;
    return held_.substr(0, cut);
  }
  size_t keep = 0;  // the longest end of the text that begins a stop string
  for (const std::string& s : stops_)
    for (size_t n = std::min(s.size() - 1, held_.size()); n > keep; n--)
      if (std::string_view(held_).ends_with(std::string_view(s).substr(0, n))) keep = n;
  std::string out = held_.substr(0, held_.size() - keep);
  held_.erase(0, held_.size() - keep);
  return out;
}

std::string StopFilter::finish() {
  return stopped_ ? "" : std::exchange(held_, "");
}

Streamed TextStream::run(const std::vector<int32_t>& prompt, const StreamOptions& o,
                         const std::function<void(const std::string&)>& show) {
  const int64_t context = engine_.options().context, vocab = engine_.model().config.vocab;
  if (prompt.empty()) throw Error(ErrorKind::usage, "prompt", "no token ids", "a text that is not empty");
  for (const int32_t id : prompt)
    if (id < 0 || id >= vocab)
      throw Error(ErrorKind::usage, "prompt", "id outside the vocabulary", "0 to " + std::to_string(vocab - 1),
                  std::to_string(id));
  if (int64_t(prompt.size()) > context)
    throw Error(ErrorKind::usage, "prompt", "context overflow", "at most " + std::to_string(context) + " ids",
                std::to_string(prompt.size()), "A larger --ctx or a shorter text fits.");
  Streamed r;
  auto interrupted = [&] { return o.interrupted && o.interrupted->load(); };
  // The last id is always computed: its logits are wanted.
  const size_t most = std::min(held_.size(), prompt.size() - 1);
  const size_t common =
      size_t(std::mismatch(held_.begin(), held_.begin() + std::ptrdiff_t(most), prompt.begin()).first - held_.begin());
  engine_.truncate(0, int64_t(common));
  held_.resize(common);
  r.reused = int64_t(common);

  const float* logits = nullptr;
  auto pass = [&](Pass kind, const int32_t* ids, int64_t rows, int64_t step) {
    Batch b;
    b.pass = kind;
    b.ids.assign(ids, ids + rows);
    b.segments = {{0, int64_t(held_.size()), rows, 0, step}};
    b.logit_rows = {rows - 1};
    logits = engine_.forward(b);
    held_.insert(held_.end(), ids, ids + rows);
  };
  auto start = std::chrono::steady_clock::now();
  while (held_.size() < prompt.size() && !interrupted()) {
    const int64_t left = int64_t(prompt.size() - held_.size()), rows = o.chunk > 0 ? std::min(left, o.chunk) : left;
    pass(Pass::prefill, prompt.data() + held_.size(), rows, 0);
    r.prefilled += rows;
  }
  r.prefill_seconds = seconds_since(start);

  StreamDecoder decoder(tokenizer_);
  StopFilter filter(o.stop);
  auto emit = [&](const std::string& text) {
    if (text.empty()) return;
    r.text += text;
    show(text);
  };
  start = std::chrono::steady_clock::now();
  for (;;) {
    if (interrupted()) {
      r.end = Streamed::End::interrupted;
      break;
    }
    const auto id = sample(std::span(logits, size_t(vocab)), o.sampling, o.sequence, uint32_t(held_.size()));
    if (!id) {
      r.end = Streamed::End::not_finite;
      break;
    }
    r.ids.push_back(*id);
    if (std::find(o.eos.begin(), o.eos.end(), *id) != o.eos.end()) {
      r.end = Streamed::End::eos;
      break;
    }
    emit(filter.push(decoder.push(*id)));
    if (filter.stopped()) {
      r.end = Streamed::End::stop;
      break;
    }
    if (o.count > 0 && int64_t(r.ids.size()) == o.count) break;
    if (int64_t(held_.size()) == context) {
      r.end = Streamed::End::context;
      break;
    }
    pass(Pass::decode, &*id, 1, int64_t(r.ids.size()) - 1);
  }
  r.decode_seconds = seconds_since(start);
  emit(filter.push(decoder.finish()));
  emit(filter.finish());
  return r;
}

}  // namespace assay
