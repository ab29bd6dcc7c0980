// assay run: ids in and ids out (greedy, pinned by other programs), or text: prompts, and chats by the model's own
// template.
#include <fmt/format.h>
#include <unistd.h>

#include <atomic>
#include <csignal>
#include <ctime>
#include <iostream>
#include <nlohmann/json.hpp>

#include "conformance/cli/options.h"
#include "conformance/text/stream.h"
#include "dumps/error.h"
#include "dumps/json.h"
#include "engine/text/chat.h"

namespace assay::cli {
namespace {

struct RunCommand {
  ModelOptions model;
  std::optional<int64_t> count;
  bool ids = false, chat = false;
  std::string json, system, chat_args;
  std::vector<std::string> stop;
  SamplingOptions sampling;
};

std::atomic<bool> interrupted{false};
static_assert(std::atomic<bool>::is_always_lock_free, "set by a signal handler");

/// Ctrl-C ends the text, not the program; reads of stdin end too (no SA_RESTART). Installed once the model is loaded:
/// until then there is no text to end.
class CtrlC {
 public:
  CtrlC() {
    struct sigaction action {};
    action.sa_handler = [](int) { interrupted = true; };
    sigaction(SIGINT, &action, &before_);
  }
  ~CtrlC() { sigaction(SIGINT, &before_, nullptr); }

 private:
  struct sigaction before_ {};
};

/// Ids to print: greedy by generate(), so that what checks rely on and what is printed is the same code.
int run_ids(const RunCommand& o, const DumpSpec& spec) {
  const DumpRun r = run_dump(o.model.load(), spec);
  int code = kPass;
  std::vector<nlohmann::ordered_json> records;
  for (size_t i = 0; i < r.generated.size(); i++) {
    const Generated& g = r.generated[i];
    if (o.json != "-") std::cout << join(g.greedy) << "\n";
    records.push_back({{"record", "run"},
                       {"prompt", "prompt" + std::to_string(i)},
                       {"ids", spec.requests[i].ids},
                       {"greedy_ids", g.greedy}});
    if (g.non_finite) {
      std::cerr << "assay: not finite, first at " << g.non_finite->text() << "\n";
      records.back()["non_finite"] = g.non_finite->text();
      code = kMismatch;
    }
  }
  if (!o.json.empty()) write_records(o.json, records);
  return code;
}

/// The streams of one run: prompts one after another, or the turns of a chat.
class TextRun {
 public:
  TextRun(const RunCommand& o, const DumpSpec& spec) : o_(o), model_(o.model.load()) {
    tokenizer_ = tokenizer_of(o.model.model);
    EngineOptions e = spec.engine;
    const int64_t most = model_->config.context > 0 ? model_->config.context : kDefaultContext;
    int64_t longest = 0;
    for (const Request& r : spec.requests) longest = std::max(longest, int64_t(r.ids.size()));
    if (e.context == 0 && o.chat) e.context = std::min(most, kDefaultContext);
    if (e.context == 0) e.context = std::min(most, longest + o.count.value_or(kDefaultContext));
    if (e.context > most)
      throw Error(ErrorKind::usage, "--ctx", "more than the model has", std::to_string(most) + " positions at most",
                  std::to_string(e.context));
    engine_ = std::make_unique<Engine>(model_, e);
    stream_ = std::make_unique<TextStream>(*engine_, *tokenizer_);
    options_.sampling = o.sampling;
    options_.count = o.count.value_or(0);
    if (spec.generate.chunk > 0) options_.chunk = spec.generate.chunk;
    options_.stop = o.stop;
    options_.interrupted = &interrupted;
    if (!o.ids) {  // ids are printed to the count, as the greedy ones are
      options_.eos = tokenizer_->eos();
      for (const int64_t id : model_->config.eos) options_.eos.push_back(int32_t(id));
    }
  }

  Streamed run(const std::vector<int32_t>& ids, uint64_t sequence) {
    options_.sequence = sequence;
    const bool shows = !o_.ids && o_.json != "-";
    const Streamed s = stream_->run(ids, options_, [&](const std::string& text) {
      if (shows) std::cout << text << std::flush;
    });
    if (o_.ids && o_.json != "-") std::cout << join(s.ids) << "\n";
    if (shows) std::cout << "\n" << std::flush;
    if (!std::cout) throw Error(ErrorKind::io, "stdout", "can't be written");
    auto rate = [](int64_t n, double seconds) { return seconds > 0 ? double(n) / seconds : 0.0; };
    const int64_t passes = std::max<int64_t>(0, int64_t(s.ids.size()) - 1);
    if (shows)
      std::cerr << fmt::format("[{} ids read{}, {:.1f} tokens/s; {} ids written, {:.1f} tokens/s; ended by {}]\n",
                               s.prefilled, s.reused > 0 ? fmt::format(" ({} kept)", s.reused) : "",
                               rate(s.prefilled, s.prefill_seconds), s.ids.size(), rate(passes, s.decode_seconds),
                               name_of(s.end));
    records_.push_back({{"record", "run"},
                        {"prompt", "prompt" + std::to_string(records_.size())},
                        {"ids", ids},
                        {"chosen_ids", s.ids},
                        {"text", s.text},
                        {"ended_by", name_of(s.end)}});
    if (s.end == Streamed::End::not_finite) {
      std::cerr << "assay: the logits of position " << ids.size() + s.ids.size() - 1
                << " hold a NaN, so that no id is chosen. assay dump with the same prompt names the first value that "
                   "is not finite.\n";
      code_ = kMismatch;
    }
    if (s.end == Streamed::End::interrupted && code_ == kPass) code_ = kUnfinished;
    return s;
  }

  int prompts(const DumpSpec& spec) {
    for (size_t i = 0; i < spec.requests.size() && !interrupted; i++) run(spec.requests[i].ids, i);
    if (records_.size() < spec.requests.size() && code_ == kPass) code_ = kUnfinished;
    return finish();
  }

  /// Turns from --prompt and --prompt-file, else from stdin, one a line. Every turn renders the whole conversation
  /// anew; the cache keeps what is common.
  int chat() {
    const std::optional<ChatTemplate> chat = ChatTemplate::load(o_.model.model);
    if (!chat)
      throw Error(ErrorKind::usage, o_.model.model, "has no chat template",
                  "chat_template.jinja or the key chat_template", "", "--prompt does without.");
    nlohmann::ordered_json messages = nlohmann::ordered_json::array(), more;
    if (!o_.chat_args.empty()) more = parse_json(o_.chat_args, "--chat-args");
    if (!o_.chat_args.empty() && !more.is_object())
      throw Error(ErrorKind::usage, "--chat-args", "is no JSON object", "{\"enable_thinking\": false}");
    for (const char* own : {"messages", "add_generation_prompt"})
      if (more.contains(own))
        throw Error(ErrorKind::usage, "--chat-args", std::string("gives ") + own + ", which is the conversation's own",
                    "--system, --prompt or lines of stdin");
    if (!o_.system.empty()) messages.push_back({{"role", "system"}, {"content", o_.system}});
    const std::time_t seconds = std::time(nullptr);
    std::tm now{};
    localtime_r(&seconds, &now);
    const std::vector<std::string> turns = o_.model.texts();
    const bool asks = turns.empty() && isatty(STDIN_FILENO);
    for (size_t i = 0; turns.empty() || i < turns.size(); i++) {
      std::string line;
      if (!turns.empty()) {
        line = turns[i];
      } else {
        if (asks) std::cerr << "> " << std::flush;
        if (!std::getline(std::cin, line)) break;
        if (line.empty()) continue;
      }
      messages.push_back({{"role", "user"}, {"content", line}});
      const Streamed s = run(tokenizer_->encode(chat->render(messages, true, more, now)), 0);
      messages.push_back({{"role", "assistant"}, {"content", s.text}});
      if (code_ == kMismatch) break;
      if (interrupted && !asks) break;
      if (interrupted) code_ = kPass;  // a turn was cut short by the person who reads it
      interrupted = false;
    }
    if (interrupted && !asks && code_ == kPass)
      code_ = kUnfinished;  // in a turn, after one, or in the read of the next
    if (asks) std::cerr << "\n";
    return finish();
  }

 private:
  static constexpr int64_t kDefaultContext = 4096;

  int finish() {
    if (!o_.json.empty()) write_records(o_.json, records_);
    return code_;
  }

  const RunCommand& o_;
  std::shared_ptr<const Model> model_;
  std::optional<Tokenizer> tokenizer_;
  std::unique_ptr<Engine> engine_;
  std::unique_ptr<TextStream> stream_;
  StreamOptions options_;
  std::vector<nlohmann::ordered_json> records_;
  int code_ = kPass;
};

int run(const RunCommand& o) {
  const int64_t count = o.count.value_or(16);
  if (count > (int64_t(1) << 31))
    throw Error(ErrorKind::usage, "-n", "too many ids", "at most 2^31", std::to_string(count));
  if (count < 1) throw Error(ErrorKind::usage, "-n", "too few ids", ">= 1", std::to_string(count));
  check_sampling(o.sampling);
  if (o.chat && (o.ids || !o.model.tokens.empty() || !o.model.official.empty()))
    throw Error(ErrorKind::usage, "--chat", "is text: turns come from --prompt, --prompt-file or stdin",
                "no --ids, --tokens or --case");
  if (!o.chat && (!o.system.empty() || !o.chat_args.empty()))
    throw Error(ErrorKind::usage, o.system.empty() ? "--chat-args" : "--system", "is a part of the chat template",
                "--chat");
  for (const std::string& s : o.stop)
    if (s.empty()) throw Error(ErrorKind::usage, "--stop", "is empty", "a text");
  const bool text = !o.ids || o.sampling.temperature > 0;
  if (text && (o.model.batch || o.model.slot != 0 || !o.model.forced_file.empty()))
    throw Error(ErrorKind::usage,
                o.model.batch       ? "--batch"
                : o.model.slot != 0 ? "--slot"
                                    : "--force-ids",
                "is for greedy ids", "--ids without --temperature");
  if (o.ids && !o.stop.empty())
    throw Error(ErrorKind::usage, "--stop", "ends texts; ids run to their count", "no --ids");
  if (o.chat) {
    ModelOptions without = o.model;  // the turns are no prompts of their own
    without.prompts = without.prompt_files = {};
    without.tokens = {"0"};
    DumpSpec spec = without.spec(0);
    spec.requests.clear();
    TextRun text_run(o, spec);
    const CtrlC ctrl_c;
    return text_run.chat();
  }
  const DumpSpec spec = o.model.spec(count - 1);
  if (!text) return run_ids(o, spec);
  if (!o.model.official.empty())
    throw Error(ErrorKind::usage, "--case", "has no tokenizer", "--ids without --temperature");
  TextRun text_run(o, spec);
  const CtrlC ctrl_c;
  return text_run.prompts(spec);
}
}  // namespace

void add_run(CLI::App& app, int& code) {
  auto o = std::make_shared<RunCommand>();
  CLI::App* c = app.add_subcommand("run", "generate text, or token ids");
  o->model.add(*c);
  c->add_option("-n,--count", o->count,
                "ids to generate (--ids: exactly, default 16; text: at most, default what the context holds)");
  c->add_flag("--ids", o->ids, "print generated ids, comma-separated, a line per prompt; EOS does not stop");
  c->add_flag("--chat", o->chat,
              "a conversation by the model's chat template: a turn per --prompt, else per line of stdin");
  c->add_option("--system", o->system, "system message of --chat");
  c->add_option("--chat-args", o->chat_args, "more variables of the chat template, a JSON object");
  c->add_option("--stop", o->stop, "text that ends the answer, and is cut off; again for each further one")
      ->allow_extra_args(false);
  c->add_option("--temperature", o->sampling.temperature, "0: greedy")->capture_default_str();
  c->add_option("--top-k", o->sampling.top_k, "keep the k likeliest ids, 0: all")->capture_default_str();
  c->add_option("--top-p", o->sampling.top_p, "keep the likeliest ids of this share together")->capture_default_str();
  c->add_option("--min-p", o->sampling.min_p, "keep ids of at least this share of the likeliest one")
      ->capture_default_str();
  c->add_option("--seed", o->sampling.seed, "of sampling; ids depend on seed, prompt number and position alone")
      ->check(is_seed)
      ->capture_default_str();
  c->add_option("--json", o->json, "write JSONL records to FILE (-: stdout)");
  c->footer(
      "Example:\n  assay run goldens/official/trained-engine/model --tokens 256,75,58,99 -n 8 --ids\n"
      "  assay run MODEL --prompt 'Once upon a time' -n 50 --temperature 0.8 --seed 1\n"
      "  assay run MODEL --chat --system 'You are terse.'");
  c->callback([o, &code] { code = run(*o); });
}

}  // namespace assay::cli
