#include "conformance/cli/options.h"

#include <fmt/format.h>

#include <cerrno>
#include <charconv>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <iostream>
#include <nlohmann/json.hpp>
#include <sstream>

#include "dumps/error.h"
#include "dumps/greedy.h"
#include "dumps/text.h"
#include "oracle/window.h"
#include "engine/device.h"
#include "engine/formats/hf_tokenizer.h"
#include "engine/formats/synth.h"

namespace assay::cli {
namespace {

int64_t parse_integer(std::string_view text, const std::string& option, const std::string& whole) {
  while (!text.empty() && std::isspace((unsigned char)text.front())) text.remove_prefix(1);
  while (!text.empty() && std::isspace((unsigned char)text.back())) text.remove_suffix(1);
  int64_t value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || end != text.data() + text.size())
    throw Error(ErrorKind::usage, option, "malformed number", "comma-separated whole numbers",
                "\"" + std::string(text) + "\" in \"" + whole.substr(0, 60) + "\"");
  return value;
}

KvType kv_from_name(const std::string& name) {
  for (KvType t : {KvType::f32, KvType::f16, KvType::bf16})
    if (name == name_of(t)) return t;
  throw Error(ErrorKind::usage, "--kv", "unknown cache type", "f16, f32 or bf16", "\"" + name + "\"");
}

Activations activations_from_name(const std::string& name) {
  for (Activations a : {Activations::s16, Activations::s8, Activations::f32})
    if (name == name_of(a)) return a;
  throw Error(ErrorKind::usage, "--activations", "unknown kind", "s16, s8 or f32", "\"" + name + "\"");
}

}  // namespace

void check_range(const char* option, int64_t value, int64_t low, int64_t high) {
  if (value < low || value > high)
    throw Error(ErrorKind::usage, option, "out of range", std::to_string(low) + " to " + std::to_string(high), std::to_string(value));
}

Isa isa_from_name(const std::string& name) {
  for (Isa i : {Isa::scalar, Isa::avx2, Isa::avx512, Isa::avx512vnni, Isa::neon})
    if (name == name_of(i)) return i;
  throw Error(ErrorKind::usage, "--isa", "unknown instruction set", "scalar, avx2, avx512, avx512vnni or neon", "\"" + name + "\"");
}

CaptureMode capture_mode_from_name(const std::string& name) {
  if (name == "full") return CaptureMode::full;
  if (name == "stats") return CaptureMode::stats;
  if (name == "hash") return CaptureMode::hash;
  throw Error(ErrorKind::usage, "--mode", "unknown capture mode", "full, stats or hash", "\"" + name + "\"");
}

std::vector<std::string> split(const std::string& text, char separator) {
  std::vector<std::string> out;
  std::stringstream in(text);
  for (std::string part; std::getline(in, part, separator);) out.push_back(part);
  return out;
}

std::vector<int32_t> parse_ids(const std::string& text, const std::string& option) {
  if (text.find_first_not_of(" \n\t") == std::string::npos) throw Error(ErrorKind::usage, option, "no token ids");
  std::vector<int32_t> ids;
  for (size_t at = 0; at <= text.size();) {
    const size_t comma = std::min(text.find(',', at), text.size());
    const int64_t v = parse_integer(std::string_view(text).substr(at, comma - at), option, text);
    if (v < 0 || v > INT32_MAX)
      throw Error(ErrorKind::usage, option, "token id out of range", "0 to 2147483647", std::to_string(v));
    ids.push_back(int32_t(v));
    at = comma + 1;
  }
  return ids;
}

std::vector<std::pair<int, int>> parse_ranges(const std::string& text, const std::string& option) {
  std::vector<std::pair<int, int>> out;
  for (const std::string& part : split(text, ',')) {
    const size_t dash = part.find('-', 1);
    const int64_t a = parse_integer(part.substr(0, dash), option, text);
    const int64_t b = dash == std::string::npos ? a : parse_integer(part.substr(dash + 1), option, text);
    if (a < 0 || b < a || b > INT32_MAX) throw Error(ErrorKind::usage, option, "bad range", "like 0,3-5", "\"" + part + "\"");
    out.emplace_back(int(a), int(b));
  }
  if (out.empty()) throw Error(ErrorKind::usage, option, "no layers named", "like 0,3-5", "\"" + text + "\"");
  return out;
}

std::string join(const std::vector<int32_t>& ids) {
  std::string out;
  for (int32_t i : ids) out += (out.empty() ? "" : ",") + std::to_string(i);
  return out;
}

void EngineChoice::add(CLI::App& app) {
  app.add_option("--activations", activations, "activations of quantised weights: s16 (default), s8 or f32 (weights are widened)");
  app.add_option("--kv", kv, "cache type: f16, f32 or bf16")->capture_default_str();
  app.add_option("--backend", backend, "cpu or cuda")->capture_default_str();
  app.add_option("--isa", isa, "scalar, avx2, avx512, avx512vnni or neon (default: the best this CPU has)");
  app.add_option("--threads", threads, "0: all cores")->capture_default_str();
  app.add_option("--module", module, "the device module of --backend cuda (default: libassay_cuda.so beside this program)");
  app.add_option("--vram-budget", budget, "bytes of device memory for weights, like 8G; the others stream through a window");
  app.add_option("--shadow", shadow, "cpu: every op of the device is checked against the CPU on the device's own inputs, byte by byte");
  app.add_flag("--no-fuse", no_fuse, "every node as a launch of its own (the same bytes)");
  app.add_flag("--no-graph", no_graph, "decode passes queued anew each time instead of replayed (the same bytes)");
}

uint64_t bytes_from_text(const std::string& text, const std::string& option) {
  uint64_t number = 0;
  const auto [end, failed] = std::from_chars(text.data(), text.data() + text.size(), number);
  const std::string unit(end, text.data() + text.size());
  const std::pair<const char*, int> units[] = {{"", 0}, {"K", 10}, {"M", 20}, {"G", 30}, {"T", 40}};
  for (const auto& [name, shift] : units)
    if (failed == std::errc() && unit == name && number <= (UINT64_MAX >> shift)) return number << shift;
  throw Error(ErrorKind::usage, option, "is no number of bytes", "like 500M, 8G or 8589934592", "\"" + text + "\"");
}

void EngineChoice::apply(EngineOptions& options) const {
  options.kv = kv_from_name(kv);
  options.activations = activations_from_name(activations.value_or("s16"));
  if (!isa.empty()) options.isa = isa_from_name(isa);
  options.threads = threads;
  for (const auto& [given, option] : {std::pair{!module.empty(), "--module"}, {!budget.empty(), "--vram-budget"}, {!shadow.empty(), "--shadow"},
                                      {no_fuse, "--no-fuse"}, {no_graph, "--no-graph"}})
    if (given && backend != "cuda") throw Error(ErrorKind::usage, option, "is of a device", "--backend cuda beside it", "--backend " + backend);
  if (!shadow.empty() && shadow != "cpu") throw Error(ErrorKind::usage, "--shadow", "unknown reference", "cpu", "\"" + shadow + "\"");
  if (backend != "cuda") return;
  options.device.module = module.empty() ? built_module("cuda").string() : module;
  if (!budget.empty()) options.device.budget = bytes_from_text(budget, "--vram-budget");
  if (!budget.empty() && options.device.budget == 0)
    throw Error(ErrorKind::usage, "--vram-budget", "holds nothing", "at least one matrix and its window", "\"" + budget + "\"", "Without it all that fits is used.");
  options.device.fused = !no_fuse;
  options.device.graph = !no_graph;
  options.device.shadow = !shadow.empty();
  options.device.notice = [](const std::string& words) { std::cerr << "assay: " << words << std::endl; };
}

void ModelOptions::add(CLI::App& app) {
  EngineChoice::add(app);
  app.add_option("model", model, "Hugging Face folder, .gguf file or synth:SHAPE:TYPE");
  app.add_option("--tokens", tokens, "token ids of one prompt, comma-separated; again for each further prompt")
      ->allow_extra_args(false);
  app.add_option("--prompt", prompts, "text of one prompt; again for each further prompt")->allow_extra_args(false);
  app.add_option("--prompt-file", prompt_files, "file with the text of one prompt")->allow_extra_args(false);
  app.add_option("--case", official, "official case: its model and all its prompts, with its decode passes");
  app.add_option("--force-ids", forced_file, "file of ids to feed in decode instead of the greedy ones; a line per prompt");
  app.add_option("--chunk", chunk, "prefill rows per pass, 0: the whole prompt")->capture_default_str();
  app.add_option("--ctx", context, "positions per slot, 0: what the prompts need")->capture_default_str();
  app.add_option("--slot", slot, "slot that prompts run in, one after another")->capture_default_str();
  app.add_flag("--batch", batch, "all prompts together, a slot each");
}

std::shared_ptr<const Model> ModelOptions::load() const {
  return EngineChoice::load(official.empty() ? model : (std::filesystem::path(official) / "model").string());
}

void EngineChoice::check_backend() const {
  if (backend != "cpu" && backend != "cuda")
    throw Error(ErrorKind::usage, "--backend", "unknown backend", "cpu or cuda", "\"" + backend + "\"");
}

void EngineChoice::check(const Model& m) const {
  check_backend();
  const Activations kind = activations_from_name(activations.value_or("s16"));
  if (!m.quantised() && activations && kind != Activations::f32)
    throw Error(ErrorKind::usage, "--activations", "the model has no quantised weights (" + m.provenance.quantisation + ")", "f32",
                *activations, "Leave the option out.");
}

std::shared_ptr<const Model> EngineChoice::load(const std::string& path) const {
  check_backend();   // before minutes of loading
  activations_from_name(activations.value_or("s16"));
  const std::filesystem::path folder(path);
  std::error_code ignored;
  if (!std::filesystem::exists(folder / "config.json", ignored) && std::filesystem::exists(folder / "model" / "config.json", ignored))
    throw Error(ErrorKind::usage, path, "is no model, but the case of one", (folder / "model").string(), "",
                "--case of run and dump takes the case, prompts included.");
  auto m = std::make_shared<Model>(load_model(path));
  check(*m);
  return m;
}

std::vector<std::string> ModelOptions::texts() const {
  std::vector<std::string> out = prompts;
  for (const std::string& file : prompt_files) out.push_back(read_text_file(file));
  return out;
}

Tokenizer tokenizer_of(const std::string& model) {
  const std::filesystem::path path(model);
  std::error_code ignored;
  if (is_synth_spec(model))
    throw Error(ErrorKind::usage, model, "has random weights and no tokenizer, and text needs one", "", "",
                "Token ids do without: --tokens 1,2,3 and --ids, or of ppl --tokens-file FILE.");
  if (std::filesystem::is_directory(path, ignored) && !std::filesystem::exists(path / "tokenizer.json", ignored))
    throw Error(ErrorKind::usage, model, "has no tokenizer.json, and text needs a tokenizer", "", "",
                "Token ids do without: --tokens 1,2,3 and --ids, or of ppl --tokens-file FILE.");
  return Tokenizer::load(path);
}

std::vector<int32_t> ids_of_text(const Tokenizer& tokenizer, const std::string& text) {
  std::vector<int32_t> ids = tokenizer.prefix();
  const std::vector<int32_t> more = tokenizer.encode(text);
  ids.insert(ids.end(), more.begin(), more.end());
  return ids;
}

/// The prompts of a dump, its decode passes (`decode`, where that is fewer and not 0) and what they were fed.
static std::vector<Request> requests_of(const Dump& dump, int64_t decode) {
  std::vector<Request> out;
  for (;;) {
    const auto tokens = prompt_tokens(dump, "prompt" + std::to_string(out.size()));
    if (!tokens) break;
    Request r;
    r.ids.assign(tokens->ids.begin(), tokens->ids.end());
    const std::string stem = "prompt" + std::to_string(out.size()) + "/decode/";
    while (r.decode < int64_t(tokens->fed.size()) && (decode == 0 || r.decode < decode) &&
           std::any_of(dump.tensors().begin(), dump.tensors().end(), [&](const DumpTensor& t) { return t.name.starts_with(stem + std::to_string(r.decode) + "/"); }))
      r.decode++;
    r.forced.assign(tokens->fed.begin(), tokens->fed.begin() + r.decode);
    out.push_back(std::move(r));
  }
  if (out.empty())
    throw Error(ErrorKind::usage, dump.path().string(), "does not say its prompts' ids", "prompts[].ids in its manifest", "none", "--tokens gives them.");
  return out;
}

void ModelOptions::force_experts(DumpSpec& spec, const Config& config) const {
  if (forced_experts.empty()) return;
  const Dump dump = Dump::open(forced_experts);
  for (size_t i = 0; i < spec.requests.size(); i++) {
    const std::string prompt = "prompt" + std::to_string(i);
    Request& r = spec.requests[i];
    if (const auto tokens = prompt_tokens(dump, prompt); tokens && std::vector<int32_t>(tokens->ids.begin(), tokens->ids.end()) != r.ids)
      throw Error(ErrorKind::usage, "--force-experts", prompt + " there is another prompt", "the same ids", "others",
                  "Experts belong to the tokens that they were chosen for.");
    r.experts = assay::forced_experts(dump, prompt, config);
  }
}

DumpSpec ModelOptions::spec(int64_t decode) const {
  DumpSpec s;
  if (decode < 0 || decode > (int64_t(1) << 31))
    throw Error(ErrorKind::usage, "--decode", "out of range", "0 to 2^31 passes", std::to_string(decode));
  if (chunk < 0 || chunk > (int64_t(1) << 31))
    throw Error(ErrorKind::usage, "--chunk", "out of range", "0 (the whole prompt) to 2^31 rows", std::to_string(chunk));
  if (official.empty() && model.empty()) throw Error(ErrorKind::usage, "model", "is missing", "a folder or .gguf file, or --case CASE");
  const bool has_text = !prompts.empty() || !prompt_files.empty();
  const bool theirs = !forced_experts.empty() && official.empty() && tokens.empty() && !has_text;
  if (theirs) {
    if (!forced_file.empty())
      throw Error(ErrorKind::usage, "--force-ids", "and the prompts of --force-experts, which bring the ids that they were fed", "one of the two", "both");
    s.requests = requests_of(Dump::open(forced_experts), decode);
  }
  if (official.empty() && tokens.empty() && !has_text && !theirs)
    throw Error(ErrorKind::usage, "prompt", "is missing", "--prompt TEXT, --prompt-file FILE, --tokens 1,2,3 or --case CASE");
  if (!official.empty() && (!model.empty() || !tokens.empty() || has_text))
    throw Error(ErrorKind::usage, "--case", "brings its own model and prompts", "--case alone",
                !model.empty() ? model : has_text ? "a text" : "--tokens");
  if (!tokens.empty() && has_text)
    throw Error(ErrorKind::usage, "--tokens", "and texts together leave the order of prompts open", "one of the two", "both");
  if (!official.empty()) {
    s.requests = official_requests(official);
    if (decode > 0)
      for (Request& r : s.requests) r.decode = decode;
  }
  for (const std::string& t : tokens) {
    s.requests.emplace_back();
    s.requests.back().ids = parse_ids(t, "--tokens");
    s.requests.back().decode = decode;
  }
  if (has_text) {
    const Tokenizer tokenizer = tokenizer_of(model);
    for (const std::string& text : texts()) {
      s.requests.emplace_back();
      s.requests.back().ids = ids_of_text(tokenizer, text);
      s.requests.back().decode = decode;
    }
  }
  if (!forced_file.empty()) {
    std::error_code ignored;
    if (std::filesystem::exists(forced_file, ignored) && !std::filesystem::is_regular_file(forced_file, ignored))
      throw Error(ErrorKind::malformed, forced_file, "is no regular file");
    std::ifstream in(forced_file);
    if (!in) throw Error(ErrorKind::malformed, forced_file, "can't be read: " + std::string(std::strerror(errno)));
    size_t prompt = 0;
    for (std::string line; std::getline(in, line);) {
      if (line.find_first_not_of(" \t\r") == std::string::npos) continue;
      if (prompt == s.requests.size())
        throw Error(ErrorKind::usage, forced_file, "more lines than prompts", std::to_string(s.requests.size()), "more");
      s.requests[prompt].forced = parse_ids(line, forced_file + ", line " + std::to_string(prompt + 1));
      prompt++;
    }
    if (prompt != s.requests.size())
      throw Error(ErrorKind::usage, forced_file, "a line of ids per prompt", std::to_string(s.requests.size()), std::to_string(prompt));
  }
  apply(s.engine);
  s.engine.context = context;
  s.generate.chunk = chunk;
  s.generate.batch = batch;
  s.generate.slot = slot;
  if (batch && slot != 0) throw Error(ErrorKind::usage, "--slot", "--batch gives every prompt its own slot", "one of the two", "both");
  if (slot < 0 || slot > 4095) throw Error(ErrorKind::usage, "--slot", "out of range", "0 to 4095", std::to_string(slot));
  return s;
}

bool id_matches(const std::string& filter, const std::string& id) {
  return filter.empty() || (filter.find('*') == std::string::npos ? id.find(filter) != std::string::npos : glob_match(filter, id));
}

void write_text(const std::string& file, const std::string& text) {
  if (file == "-") {
    std::cout << text << std::flush;
    if (!std::cout) throw Error(ErrorKind::io, "stdout", "can't be written");
    return;
  }
  const std::filesystem::path path(file);
  const std::string kind = path.extension().string();
  if (path.filename() == "manifest.json" || kind == ".safetensors" || kind == ".gguf")
    throw Error(ErrorKind::usage, file, "is the name of a dump's or a model's file, which would be lost", "another name");
  // A full disk leaves what was there: written beside it, then renamed. Devices and pipes are written as they are.
  std::error_code ignored;
  const bool beside = !std::filesystem::exists(path, ignored) || std::filesystem::is_regular_file(path, ignored);
  const std::string into = beside ? file + ".partial" : file;
  std::ofstream out(into, std::ios::binary);
  out << text;
  out.close();
  std::error_code failed;
  if (out && beside) std::filesystem::rename(into, path, failed);
  if (out && !failed) return;
  const std::string why = failed ? failed.message() : std::strerror(errno);
  if (beside) std::filesystem::remove(into, ignored);
  throw Error(ErrorKind::io, file, "can't be written: " + why);
}

void different_outputs(const std::string& json, const std::string& html) {
  if (!json.empty() && json == html)
    throw Error(ErrorKind::usage, "--html", "is where --json goes", "two files", json);
}

void write_records(const std::string& file, const std::vector<nlohmann::ordered_json>& records) {
  std::string text;
  // Paths and names of others may hold bytes that are no UTF-8: they are shown as such, and lose no record.
  for (const auto& r : records) text += r.dump(-1, ' ', false, nlohmann::ordered_json::error_handler_t::replace) + "\n";
  write_text(file, text);
}

static std::string known_presets() {
  std::string out;
  for (const auto& [name, _] : presets()) out += (out.empty() ? "" : ", ") + name;
  return out;
}

void ToleranceOptions::add(CLI::App& command) {
  command.add_option("--tol", tol, "max_rel that every tensor may reach");
  command.add_option("--noise-factor", noise_factor,
                     "times the baseline's noise floor per phase (official cases), at least --tol");
  command.add_option("--preset", preset, "named tolerances (dumps/README.md says for what): " + known_presets() +
                                             "; official cases default to official-f32");
}

Tolerance ToleranceOptions::chosen(const Dump& base, Level level) const {
  Tolerance out;
  const std::string name = !preset.empty() ? preset : base.kind() == Dump::Kind::official_case ? "official-f32" : "";
  if (!name.empty()) {
    const auto it = presets().find(name);
    if (it == presets().end())
      throw Error(ErrorKind::usage, "--preset", "unknown preset", "one of " + known_presets(), "\"" + name + "\"");
    out = it->second;
    if (out.noise_factor > 0 && base.kind() != Dump::Kind::official_case)
      throw Error(ErrorKind::usage, "--preset " + name, "needs the noise floors of an official case",
                  "goldens/official/CASE as the baseline", base.path().string(),
                  "Between two dumps: --preset " + name.substr(name.find('-') + 1) + ".");
  }
  for (const auto& [value, option] : {std::pair{tol, "--tol"}, std::pair{noise_factor, "--noise-factor"}})
    if (value && !(*value >= 0 && *value < 1e6))
      throw Error(ErrorKind::usage, option, "out of range", "0 to 1e6", std::to_string(*value));
  if (tol) {  // then accumulated error is what is asked about
    out.fixed = *tol;
    out.cache_ulps = out.unit = 0;
    if (preset.empty() && !noise_factor) out.noise_factor = 0;
    out.preset = "custom";
  }
  if (noise_factor) {
    out.noise_factor = *noise_factor;
    out.unit = 0;
    out.preset = "custom";
  }
  if (level == Level::max_rel && out.preset.empty())
    throw Error(ErrorKind::usage, "--level max_rel", "needs a tolerance", "--tol X or --preset NAME (" + known_presets() + ")", "",
                "Only official cases bring their own.");
  return out;
}

std::string ToleranceOptions::words() const {
  std::string out;
  if (!preset.empty()) out += " --preset " + preset;
  if (tol) out += fmt::format(" --tol {}", *tol);
  if (noise_factor) out += fmt::format(" --noise-factor {}", *noise_factor);
  return out;
}

void add_errors(CompareOptions& options, const std::string& model, const Dump& base, const Dump& target, bool accumulated) {
  const oracle::Weights64 weights = oracle::Weights64::open(model);
  oracle::WindowOptions window;
  window.threads = options.threads;
  window.accumulated = accumulated;
  const bool decides = options.level == Level::max_rel && options.tolerance.unit > 0;
  if (decides || base.kind() == Dump::Kind::dump) options.added_base = oracle::window_errors(weights, base, window);
  if (decides)
    for (const NodeError& e : options.added_base) {
      const size_t slash = e.name.rfind('/');
      const double limit = added_limit(options.tolerance.unit, e.name.substr(slash + 1));
      if (!(e.added <= limit))
        throw Error(ErrorKind::usage, "--model " + model, "is not the baseline's: by it " + e.name + " of the baseline is wrong itself",
                    fmt::format("at most {:.3g} added", limit), e.problem.empty() ? fmt::format("{:.3g}", e.added) : e.problem,
                    "Give the model that " + base.path().string() + " was made with.");
    }
  options.added = oracle::window_errors(weights, target, window);
  if (base.kind() != Dump::Kind::dump) options.added_base.clear();  // float64 itself: nothing to show
}

WorkFolder::WorkFolder(const std::filesystem::path& base, const std::string& name) {
  const std::filesystem::path parent = base.empty() ? std::filesystem::temp_directory_path() : base;
  std::error_code failed;
  std::filesystem::create_directories(parent, failed);
  std::string pattern = (parent / (name + "-XXXXXX")).string();
  if (!mkdtemp(pattern.data()))
    throw Error(ErrorKind::io, parent.string(), "no folder can be made in it", "a folder that may be written", strerror(errno));
  path = pattern;
}

WorkFolder::~WorkFolder() {
  std::error_code ignored;
  keep ? std::filesystem::remove(path, ignored) : std::filesystem::remove_all(path, ignored) > 0;
}

}  // namespace assay::cli
