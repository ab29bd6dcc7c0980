// assay ppl: negative log-likelihood and perplexity of a text, whose bytes depend on no chunk, thread or instruction
// set.
#include <fmt/format.h>

#include <cmath>
#include <iostream>
#include <nlohmann/json.hpp>

#include "conformance/cli/options.h"
#include "conformance/quality/nll.h"
#include "dumps/digest.h"
#include "dumps/error.h"
#include "engine/formats/hf_tokenizer.h"
#include "engine/numerics.h"

namespace assay::cli {
namespace {

struct PplCommand {
  EngineChoice engine;
  std::string model, text, tokens_file, pass = "prefill", by, json;
  int64_t chunk = 128, window = 0;
};

std::string hex_bits(double d) {
  return fmt::format("{:016x}", bits_of(d));
}

int run(const PplCommand& o) {
  if (o.model.empty()) throw Error(ErrorKind::usage, "model", "is missing", "a folder or .gguf file");
  if (o.text.empty() == o.tokens_file.empty())
    throw Error(ErrorKind::usage, "assay ppl", "wants a text", "--text FILE or --tokens-file FILE");
  if (o.pass != "prefill" && o.pass != "decode")
    throw Error(ErrorKind::usage, "--pass", "unknown pass", "prefill or decode", "\"" + o.pass + "\"");
  if (!o.by.empty() && o.by != "token")
    throw Error(ErrorKind::usage, "--by", "unknown unit", "token", "\"" + o.by + "\"");
  for (const auto& [option, value] : {std::pair("--chunk", o.chunk), std::pair("--window", o.window)})
    if (value < 0 || value > (int64_t(1) << 31))
      throw Error(ErrorKind::usage, option, "out of range", "0 to 2^31", std::to_string(value));
  const std::shared_ptr<const Model> model = o.engine.load(o.model);
  std::vector<int32_t> ids;
  std::optional<Tokenizer> tokenizer;
  NllOptions options;
  if (!o.text.empty()) {
    tokenizer = tokenizer_of(o.model);
    ids = tokenizer->encode(read_text_file(o.text));
    options.prefix = tokenizer->prefix();
  } else {
    ids = parse_ids(read_text_file(o.tokens_file), o.tokens_file);
  }
  options.pass = o.pass == "decode" ? Pass::decode : Pass::prefill;
  options.chunk = o.chunk;
  EngineOptions engine_options;
  o.engine.apply(engine_options);
  const int64_t all = int64_t(options.prefix.size() + ids.size());
  const int64_t most = model->config.context > 0 ? std::min(model->config.context, all) : all;
  if (o.window > 0 && o.window > most && o.window > model->config.context && model->config.context > 0)
    throw Error(ErrorKind::usage, "--window", "more than the model has",
                std::to_string(model->config.context) + " positions at most", std::to_string(o.window));
  engine_options.context = std::max<int64_t>(o.window > 0 ? std::min(o.window, all) : most, 1);
  options.window = engine_options.context;
  Engine engine(model, engine_options);
  const Nll nll = token_nll(engine, ids, options);

  std::string bits;  // what "the same bytes" speaks of
  for (const TokenNll& t : nll.tokens) {
    const uint64_t b = bits_of(t.nll);
    for (int i = 0; i < 8; i++) bits += char(b >> (8 * i));
  }
  const std::string hash = xxh3_128_hex(bits.data(), bits.size());
  std::vector<nlohmann::ordered_json> records;
  if (o.by == "token")
    for (const TokenNll& t : nll.tokens) {
      nlohmann::ordered_json r = {{"record", "nll"},
                                  {"index", t.index},
                                  {"window", t.window},
                                  {"position", t.position},
                                  {"id", ids[size_t(t.index)]}};
      if (std::isfinite(t.nll))
        r["nll"] = t.nll;
      else
        r["nll"] = nullptr;
      r["bits"] = hex_bits(t.nll);
      records.push_back(std::move(r));
    }
  nlohmann::ordered_json summary = {{"record", "ppl"},
                                    {"model", o.model},
                                    {"pass", o.pass},
                                    {"activations", model->quantised() ? o.engine.activations.value_or("s16") : "f32"},
                                    {"kv", o.engine.kv},
                                    {"ids", ids.size()},
                                    {"judged", nll.tokens.size()},
                                    {"window", options.window},
                                    {"nll_hash", hash}};
  int code = kPass;
  std::string text;
  if (nll.not_finite) {
    const TokenNll& t = nll.tokens[*nll.not_finite];
    summary["not_finite"] = t.index;
    text = fmt::format(
        "NOT FINITE: the NLL of id {} (window {}, position {}) is no number; assay dump with these ids names the first "
        "value that is none\n",
        t.index, t.window, t.position);
    code = kMismatch;
  } else {
    summary["mean_nll"] = nll.mean();
    summary["perplexity"] = nll.perplexity();
    text = fmt::format(
        "model       {}, {}; activations {}, kv {}\ntext        {} ids, {} judged, windows of {}; {} passes\n"
        "mean NLL    {:.6f} nats\nperplexity  {:.4f}\nNLL hash    {}\n",
        model->config.family, model->provenance.quantisation, summary["activations"].get<std::string>(), o.engine.kv,
        ids.size(), nll.tokens.size(), options.window, o.pass, nll.mean(), nll.perplexity(), hash);
  }
  records.push_back(std::move(summary));
  if (!o.json.empty())
    write_records(o.json, records);
  else if (o.by == "token")
    write_records("-", records);
  if (o.json != "-" && (o.by.empty() || !o.json.empty()))
    std::cout << text;
  else if (code != kPass)
    std::cerr << text;
  return code;
}

}  // namespace

void add_ppl(CLI::App& app, int& code) {
  auto o = std::make_shared<PplCommand>();
  CLI::App* c = app.add_subcommand("ppl", "negative log-likelihood and perplexity of a text");
  c->add_option("model", o->model, "Hugging Face folder, .gguf file or synth:SHAPE:TYPE (with --tokens-file)");
  o->engine.add(*c);
  c->add_option("--text", o->text, "file with the text");
  c->add_option("--tokens-file", o->tokens_file, "file with its token ids, comma-separated");
  c->add_option("--pass", o->pass, "prefill, or decode: one id a pass")->capture_default_str();
  c->add_option("--chunk", o->chunk, "prefill rows per pass, 0: a whole window; changes no byte")
      ->capture_default_str();
  c->add_option("--window", o->window, "positions that are read together, 0: what the model has");
  c->add_option("--by", o->by, "token: a JSONL record for each");
  c->add_option("--json", o->json, "write JSONL records to FILE (-: stdout)");
  c->footer(
      "Two models' figures are comparable on the same text and window: their difference is what quantisation costs.\n"
      "Example:\n  assay ppl MODEL --text goldens/text/alice.txt\n  assay ppl MODEL --text goldens/text/alice.txt "
      "--pass decode --activations s8 --by token --json nll.jsonl");
  c->callback([o, &code] { code = run(*o); });
}

}  // namespace assay::cli
