// assay convert: a model in another format and weight type.
#include "engine/formats/convert.h"

#include <fmt/format.h>

#include <cmath>
#include <iostream>
#include <nlohmann/json.hpp>

#include "conformance/cli/options.h"
#include "dumps/error.h"
#include "dumps/text.h"
#include "engine/formats/gguf_writer.h"
#include "engine/formats/quantise.h"
#include "engine/text/tokenizer_model.h"

namespace assay::cli {
namespace {

struct ConvertCommand {
  std::string from, to, type, json;
  int threads = 0;
  bool force = false, report = false;
};

/// Of decibels; JSON has no infinity.
nlohmann::ordered_json db_or_null(double db) {
  return std::isinf(db) ? nlohmann::ordered_json(nullptr) : nlohmann::ordered_json(db);
}
std::string db_text(double db) {
  return std::isinf(db) ? "exact" : fmt::format("{:.2f}", db);
}

std::vector<nlohmann::ordered_json> records_of(const ConvertCommand& o, const ConvertReport& r) {
  std::vector<nlohmann::ordered_json> out = {{{"record", "convert"},
                                              {"from", o.from},
                                              {"to", o.to},
                                              {"type", o.type},
                                              {"bytes", r.bytes},
                                              {"notes", r.notes}}};
  for (const ConvertedTensor& t : r.tensors) {
    out.push_back({{"record", "converted_tensor"},
                   {"name", t.name},
                   {"shape", t.shape},
                   {"from", name_of(t.from)},
                   {"type", name_of(t.to)},
                   {"fallback", t.fallback},
                   {"sqnr_db", db_or_null(t.sqnr_db)},
                   {"worst_row", t.worst_row},
                   {"worst_row_sqnr_db", db_or_null(t.worst_row_sqnr_db)}});
  }
  return out;
}

std::string table_of(const ConvertReport& r) {
  size_t width = 6;
  for (const ConvertedTensor& t : r.tensors) width = std::max(width, t.name.size());
  std::string out = fmt::format("{:<{}}  {:>16}  {:>5} {:>5}  {:>9}  {:>9}  {:>9}\n", "tensor", width, "shape", "from",
                                "to", "SQNR dB", "worst row", "its dB");
  for (const ConvertedTensor& t : r.tensors) {
    out += fmt::format("{:<{}}  {:>16}  {:>5} {:>5}  {:>9}  {:>9}  {:>9}{}\n", t.name, width, shape_text(t.shape),
                       name_of(t.from), name_of(t.to), db_text(t.sqnr_db),
                       std::isinf(t.sqnr_db) ? "-" : std::to_string(t.worst_row), db_text(t.worst_row_sqnr_db),
                       t.fallback ? "  fallback" : "");
  }
  return out;
}

int run(const ConvertCommand& o) {
  ConvertOptions options;
  if (!o.type.empty()) options.type = weight_type_from_name(o.type, "--type");
  options.replace = o.force;
  options.threads = o.threads;
  options.put_tokenizer = [](GgufWriter& file, const std::filesystem::path& folder, const Config& config) {
    put_tokenizer_keys(file, tokenizer_parts(folder), config.vocab);
  };
  const ConvertReport report = convert_model(o.from, o.to, options);
  if (!o.json.empty()) write_records(o.json, records_of(o, report));
  for (const std::string& note : report.notes) std::cerr << "assay: " << note << "\n";
  if (o.json == "-") return kPass;
  if (o.report) std::cout << table_of(report);
  const ConvertedTensor* worst = nullptr;
  for (const ConvertedTensor& t : report.tensors) {
    if (!worst || t.sqnr_db < worst->sqnr_db) worst = &t;
  }
  std::cout << fmt::format("wrote    {}: {} matrices, {}\n", o.to, report.tensors.size(), bytes_text(report.bytes));
  if (worst && std::isinf(worst->sqnr_db))
    std::cout << "SQNR     exact: no value was changed\n";
  else if (worst)
    std::cout << fmt::format("SQNR     {} dB at least ({})\n", db_text(worst->sqnr_db), worst->name);
  std::cout << fmt::format("next     assay inspect {}\n", o.to);
  return kPass;
}

}  // namespace

void add_convert(CLI::App& app, int& code) {
  auto o = std::make_shared<ConvertCommand>();
  CLI::App* c = app.add_subcommand("convert", "write a model in another format or weight type");
  c->add_option("from", o->from, "Hugging Face folder or GGUF file")->required();
  c->add_option("to", o->to, "a name that ends in .gguf: a GGUF file; any other: a Hugging Face folder")->required();
  c->add_option("--type", o->type, "of all matrices: " + supported_weight_types() + "; without it each keeps its own");
  c->add_option("--threads", o->threads, "0: all cores")->capture_default_str();
  c->add_flag("--report", o->report, "a line per matrix: signal to quantisation noise, and the worst row");
  c->add_flag("--force", o->force, "replace the output");
  c->add_option("--json", o->json, "write JSONL records to FILE (-: stdout)");
  c->footer(
      "Matrices whose rows don't divide into the type's blocks become Q8_0 (rows of whole 32s) or F16, which is said.\n"
      "A Hugging Face folder holds F32, F16 and BF16 alone: a quantised GGUF file becomes one with --type F32.\n"
      "Example:\n  assay convert goldens/official/qwen3-k256/model /tmp/k256.gguf --type Q4_K --report");
  c->callback([o, &code] { code = run(*o); });
}

}  // namespace assay::cli
