// assay synth: a file with random weights in the shape of a real model.
#include <fmt/format.h>

#include <chrono>
#include <iostream>
#include <nlohmann/json.hpp>

#include "conformance/cli/options.h"
#include "dumps/error.h"
#include "dumps/text.h"
#include "engine/formats/quantise.h"
#include "engine/formats/synth.h"

namespace assay::cli {
namespace {

struct SynthCommand {
  std::string shape, quant, out, json;
  uint64_t seed = 1;
  int64_t layers = 0;
  int threads = 0;
  bool force = false, list = false;
};

int list_shapes(const SynthCommand& o) {
  std::string text = fmt::format("{:<9} {:<10} {:>10} {:>6} {:>6} {:>6} {:>8} {:>6} {:>7}\n", "shape", "family",
                                 "parameters", "layers", "hidden", "heads", "kv_heads", "ffn", "vocab");
  std::vector<nlohmann::ordered_json> records;
  for (const SynthShape& s : synth_shapes()) {
    text +=
        fmt::format("{:<9} {:<10} {:>9.2f}B {:>6} {:>6} {:>6} {:>8} {:>6} {:>7}{}\n", s.name, s.family,
                    double(s.parameters()) / 1e9, s.layers, s.hidden, s.heads, s.kv_heads,
                    s.experts ? s.expert_ffn : s.ffn, s.vocab, s.runs() ? "" : "  the engine does not run this family");
    records.push_back({{"record", "shape"},
                       {"shape", s.name},
                       {"family", s.family},
                       {"parameters", s.parameters()},
                       {"layers", s.layers},
                       {"hidden", s.hidden},
                       {"runs", s.runs()}});
  }
  if (!o.json.empty()) write_records(o.json, records);
  if (o.json != "-") std::cout << text;
  return kPass;
}

int run(const SynthCommand& o) {
  if (o.list) return list_shapes(o);
  for (auto [option, value] : {std::pair{"--shape", &o.shape}, {"--quant", &o.quant}, {"--out", &o.out}})
    if (value->empty()) throw Error(ErrorKind::usage, option, "is missing", "a value, or --list for the shapes");
  if (o.layers < 0) throw Error(ErrorKind::usage, "--layers", "too few layers", "1 or more", std::to_string(o.layers));
  const SynthSpec spec{o.shape, weight_type_from_name(o.quant, "--quant"), o.seed, o.layers};
  const SynthLayout layout = synth_layout(spec);
  for (const std::string& note : layout.notes) std::cerr << "assay: " << note << "\n";
  const auto start = std::chrono::steady_clock::now();
  const uint64_t bytes = write_synth_gguf(spec, o.out, o.force, o.threads);
  const double seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  if (!o.json.empty())
    write_records(o.json, {{{"record", "synth"},
                            {"path", o.out},
                            {"model", spec.text()},
                            {"tensors", layout.tensors.size()},
                            {"other_types", layout.notes},
                            {"bytes", bytes},
                            {"seconds", seconds}}});
  if (o.json != "-")
    std::cout << fmt::format(
        "wrote    {}: {} of {} tensors, {} in {:.1f} s ({:.2f} GB/s)\nnext     assay run {} --tokens 1,2,3 -n 4 "
        "--ids\n",
        o.out, spec.text(), layout.tensors.size(), bytes_text(bytes), seconds, double(bytes) / 1e9 / seconds, o.out);
  return kPass;
}

}  // namespace

void add_synth(CLI::App& app, int& code) {
  auto o = std::make_shared<SynthCommand>();
  CLI::App* c = app.add_subcommand("synth", "write a model with random weights in the shape of a real one");
  c->add_option("--shape", o->shape, "0.6B, VL-2B, 8B, OLMo2-1B, Qwen2.5-7B, 30B-A3B, or a config.json");
  c->add_option("--quant", o->quant,
                "type of all matrices: F32, F16, BF16, Q8_0, Q4_0, Q4_1, Q5_0, Q5_1, Q4_K, Q5_K, Q6_K");
  c->add_option("--seed", o->seed, "another seed, other weights")->check(is_seed)->capture_default_str();
  c->add_option("--layers", o->layers, "layers, 0: as many as the shape has")->capture_default_str();
  c->add_option("--out", o->out, "GGUF file to write");
  c->add_option("--threads", o->threads, "0: all cores")->capture_default_str();
  c->add_flag("--force", o->force, "replace the file");
  c->add_flag("--list", o->list, "print the shapes that have names");
  c->add_option("--json", o->json, "write JSONL records to FILE (-: stdout)");
  c->footer(
      "The same model without a file: synth:SHAPE:TYPE[:layers=N][:seed=S] wherever a model's path may stand.\n"
      "Example:\n  assay synth --shape 0.6B --quant Q4_0 --layers 2 --out /tmp/small.gguf");
  c->callback([o, &code] { code = run(*o); });
}

}  // namespace assay::cli
