// Options that several commands share, parsed once and the same way.
#pragma once
#include <CLI/CLI.hpp>
#include <charconv>
#include <optional>
#include <string>
#include <vector>

#include "conformance/runner.h"
#include "dumps/compare.h"
#include "engine/text/tokenizer.h"

namespace assay::cli {

/// What runs a model, of every command that does. Call add() when the command is declared, the rest when it runs.
struct EngineChoice {
  std::string backend = "cpu", kv = "f16", isa, module, budget, shadow;
  bool no_fuse = false, no_graph = false;
  std::optional<std::string> activations;
  int threads = 0;

  void add(CLI::App& app);
  std::shared_ptr<const Model> load(
      const std::string& path) const;  // refuses activations that can't be had (Error{usage})
  void check_backend() const;   // Error{usage}: unknown
  /// Error{usage}: an unknown backend, activations that this model can't have.
  void check(const Model& model) const;
  void apply(EngineOptions& options) const;
};

/// Options of commands that run requests of token ids.
struct ModelOptions : EngineChoice {
  std::string model, official;
  std::vector<std::string> tokens, prompts, prompt_files;
  std::string forced_file, forced_experts;
  int slot = 0;
  int64_t chunk = 0, context = 0;
  bool batch = false;

  void add(CLI::App& app);
  std::shared_ptr<const Model> load() const;  // of `model` or the official case
  /// Texts of --prompt, then of --prompt-file.
  std::vector<std::string> texts() const;
  /// One request per --tokens or text, each with `decode` passes and the ids of --force-ids.
  DumpSpec spec(int64_t decode) const;
  /// Adds the experts of --force-experts.
  void force_experts(DumpSpec& spec, const Config& config) const;
};

/// The tokenizer of a model; Error{usage} says what to do where there is none.
Tokenizer tokenizer_of(const std::string& model);
/// Ids of a text as the model wants it at the beginning of a sequence: its prefix (BOS), then the text.
std::vector<int32_t> ids_of_text(const Tokenizer& tokenizer, const std::string& text);
/// "1,2,3" (spaces allowed) as ids. Error{usage} names `option`, the place and what stood there.
std::vector<int32_t> parse_ids(const std::string& text, const std::string& option);
/// "0,3-5" as closed ranges.
std::vector<std::pair<int, int>> parse_ranges(const std::string& text, const std::string& option);
/// Throws Error{usage} naming the option and the range.
void check_range(const char* option, int64_t value, int64_t low, int64_t high);
/// --filter of a list of ids: part of the id, or a glob with * over all of it. Empty: every id.
bool id_matches(const std::string& filter, const std::string& id);
/// "500M", "8G" or plain bytes; units are powers of 1024. Error{usage} names the option.
uint64_t bytes_from_text(const std::string& text, const std::string& option);
Isa isa_from_name(const std::string& name);                   // of --isa
CaptureMode capture_mode_from_name(const std::string& name);  // of --mode
std::vector<std::string> split(const std::string& text, char separator);
std::string join(const std::vector<int32_t>& ids);

/// The repository with goldens/: `option` (--root), else ASSAY_ROOT, else the folder this program was built from.
std::filesystem::path find_root(const std::string& option);
/// Writes JSONL records to a file or, for "-", to stdout. Error{io} when the disk refuses.
void write_records(const std::string& file, const std::vector<nlohmann::ordered_json>& records);
void write_text(const std::string& file, const std::string& text);

// Every command adds its subcommand and returns its exit code through `code`.
void add_run(CLI::App& app, int& code);
void add_ppl(CLI::App& app, int& code);
void add_dump(CLI::App& app, int& code);
void add_compare(CLI::App& app, int& code);
void add_report(CLI::App& app, int& code);
void add_bisect(CLI::App& app, int& code);
void add_replay(CLI::App& app, int& code);
void add_map(CLI::App& app, int& code);
void add_inspect(CLI::App& app, int& code);
void add_convert(CLI::App& app, int& code);
void add_import(CLI::App& app, int& code);
void add_synth(CLI::App& app, int& code);
void add_check(CLI::App& app, int& code);
void add_list(CLI::App& app, int& code);
void add_faults(CLI::App& app, int& code);
void add_gate(CLI::App& app, int& code);
void add_bench(CLI::App& app, int& code);
void add_plan(CLI::App& app, int& code);
void add_limits(CLI::App& app, int& code);
void add_selftest(CLI::App& app, int& code);
void add_tokenize(CLI::App& app, int& code);

/// Error{usage} where --json and --html are one file or both stdout.
void different_outputs(const std::string& json, const std::string& html);

/// --preset, --tol, --noise-factor: what max_rel holds values against.
struct ToleranceOptions {
  std::string preset;
  std::optional<double> tol, noise_factor;
  void add(CLI::App& command);
  bool asked() const { return !preset.empty() || tol || noise_factor; }
  /// Official cases bring their own. Error{usage}: unknown names, numbers out of range, and at max_rel none at all.
  Tolerance chosen(const Dump& base, Level level) const;
  /// As words of a command, each with a blank before it, so that the next one judges alike.
  std::string words() const;
};

/// The added errors of both sides by the model's float64 run. Where they decide (Tolerance::unit, max_rel) the baseline's own
/// must be within the limits: Error{usage} for another model than the baseline's, or one without the ids of its prompts.
void add_errors(CompareOptions& options, const std::string& model, const Dump& base, const Dump& target, bool accumulated);

/// A new folder below `base` (empty: the system's folder for temporary files), gone with everything in it at the end. What was
/// in `base` stays. Error{io} if it can't be made.
class WorkFolder {
 public:
  WorkFolder(const std::filesystem::path& base, const std::string& name);
  ~WorkFolder();
  WorkFolder(const WorkFolder&) = delete;
  std::filesystem::path path;
  bool keep = false;  // at the end it goes only if it is empty
};

/// A CLI11 check: 0 to 2^64 - 1. The library's own conversion wraps negative numbers and clamps larger ones.
inline std::string is_seed(const std::string& text) {
  uint64_t value = 0;
  const char* end = text.data() + text.size();
  const auto [stop, error] = std::from_chars(text.data(), end, value);
  return error == std::errc() && stop == end ? "" : "wanted a whole number from 0 to 2^64 - 1, found " + text;
}

}  // namespace assay::cli
