#include "conformance/evidence.h"

#include <fmt/format.h>

#include <algorithm>
#include <ctime>
#include <fstream>
#include <set>

#include "conformance/op_hashes.h"
#include "cuda/sources.h"
#include "dumps/error.h"
#include "dumps/json.h"
#include "dumps/text.h"
#include "engine/version.h"

namespace assay {
namespace {

using OrderedJson = nlohmann::ordered_json;
constexpr int kFormat = 1;
constexpr int64_t kMost = int64_t(1) << 53;  // what JSON numbers hold exactly

/// An object whose every field has to be read: one that nobody asked for is an error, not a remark.
class Fields {
 public:
  Fields(const OrderedJson& object, std::string where) : object_(object), where_(std::move(where)) {
    if (!object.is_object())
      throw Error(ErrorKind::malformed, where_, "is of another kind", "an object", object.type_name());
  }
  bool has(const char* key) const { return object_.contains(key); }
  const OrderedJson& at(const char* key) {
    read_.insert(key);
    return json_get(object_, key, where_);
  }
  std::string at_key(const char* key) const { return where_ + "." + key; }
  std::string text(const char* key) { return json_string(at(key), at_key(key)); }
  int64_t count(const char* key) { return json_int(at(key), at_key(key), 0, kMost); }
  std::string one_of(const char* key, std::initializer_list<std::string_view> words) {
    const std::string found = text(key);
    std::string wanted;
    for (std::string_view w : words) wanted += (wanted.empty() ? "" : " or ") + std::string(w);
    if (std::find(words.begin(), words.end(), found) == words.end())
      throw Error(ErrorKind::malformed, at_key(key), "is none of the words that may stand there", wanted,
                  in_quotes(found));
    return found;
  }
  std::string hash(const char* key) { return check_hash(text(key), at_key(key)); }
  static std::string check_hash(const std::string& found, const std::string& where) {
    if (found.size() != 32 || found.find_first_not_of("0123456789abcdef") != std::string::npos)
      throw Error(ErrorKind::malformed, where, "is no hash", "32 hex digits", in_quotes(found));
    return found;
  }
  std::string date(const char* key) {
    const std::string found = text(key), form = "0000-00-00T00:00:00Z";
    bool fits = found.size() == form.size();
    for (size_t i = 0; fits && i < form.size(); i++)
      fits = form[i] == '0' ? found[i] >= '0' && found[i] <= '9' : found[i] == form[i];
    if (!fits)
      throw Error(ErrorKind::malformed, at_key(key), "is no time", "like 2026-11-30T15:40:00Z", in_quotes(found));
    return found;
  }
  void done() const {
    for (const auto& [key, value] : object_.items())
      if (!read_.contains(key))
        throw Error(ErrorKind::malformed, where_, "has a field of no meaning",
                    "those of conformance/schemas/evidence.schema.json", in_quotes(key));
  }

 private:
  const OrderedJson& object_;
  std::string where_;
  std::set<std::string> read_;
};

bool holds_failures(const std::filesystem::path& file) {
  const std::string name = file.filename().string(), end = ".failed.json";
  return name.size() > end.size() && name.compare(name.size() - end.size(), end.size(), end) == 0;
}

EvidenceEntry read_entry(const OrderedJson& object, const std::string& where, bool failures) {
  EvidenceEntry e;
  Fields f(object, where);
  e.check = f.text("check");
  e.verdict = failures ? f.one_of("verdict", {"pass", "fail", "error"}) : f.one_of("verdict", {"pass"});
  e.recorded = f.date("recorded");
  e.sources = {f.text("sources_of"), f.hash("sources")};
  e.compared = f.count("compared");
  e.failed = f.count("failed");
  e.seconds = json_finite(f.at("seconds"), f.at_key("seconds"));
  e.launches = f.count("launches");
  const OrderedJson& variants = f.at("variants");
  if (!variants.is_object())
    throw Error(ErrorKind::malformed, f.at_key("variants"), "is of another kind", "an object", variants.type_name());
  for (const auto& [name, times] : variants.items()) e.variants[name] = json_int(times, f.at_key("variants"), 1, kMost);
  const OrderedJson& digests = f.at("digests");
  if (!digests.is_object())
    throw Error(ErrorKind::malformed, f.at_key("digests"), "is of another kind", "an object", digests.type_name());
  for (const auto& [name, digest] : digests.items())
    e.digests.push_back({name, Fields::check_hash(json_string(digest, f.at_key("digests")), f.at_key("digests"))});
  if (failures) e.failures = json_strings(f.at("failures"), f.at_key("failures"));
  f.done();
  if (e.verdict == "pass" && (e.compared == 0 || e.failed != 0))
    throw Error(ErrorKind::malformed, where, "passed, as it says, and contradicts that",
                "something compared and nothing failed", fmt::format("{} compared, {} failed", e.compared, e.failed));
  return e;
}

}  // namespace

SourceHash built_sources(const Check& check) {
  const auto of = [](std::string_view op) -> std::string {
    for (const OpHash& h : kOpHashes)
      if (h.op == op) return h.hash;
    return "";
  };
  const std::string& id = check.id;
  const size_t begin = id.find('/') + 1;
  // The op of kernel/OP/DEVICE, the room of kernel/ROOM/NAME/DEVICE.
  std::string op = check.scope == Scope::kernel ? id.substr(begin, id.find('/', begin) - begin) : "models";
  if (of(op).empty()) op = "ops";
  SourceHash out{op, of(op)};
  if (check.device == "simt") {
    const std::string both = out.hash + of("emulation");
    out.hash = xxh3_128_hex(both.data(), both.size());
  }
  return out;
}

std::string built_module_sources() {
  return ASSAY_CUDA_SOURCES;
}

const EvidenceEntry* Evidence::find(const std::string& check) const {
  const auto it = std::find_if(checks.begin(), checks.end(), [&](const EvidenceEntry& e) { return e.check == check; });
  return it == checks.end() ? nullptr : &*it;
}

std::string Evidence::recorded() const {
  std::string newest;
  for (const EvidenceEntry& e : checks) newest = std::max(newest, e.recorded);
  return newest;
}

std::string Evidence::differs_from(const Evidence& other) const {
  const std::tuple<const char*, std::string, std::string> rows[] = {
      {"kind of device", device.emulated ? "emulated" : "device", other.device.emulated ? "emulated" : "device"},
      {"device", device.name, other.device.name},
      {"architecture", device.architecture, other.device.architecture},
      {"driver", device.driver, other.device.driver},
      {"seed", std::to_string(seed), std::to_string(other.seed)}};
  for (const auto& [what, mine, theirs] : rows)
    if (mine != theirs) return fmt::format("{} \"{}\", not \"{}\"", what, mine, theirs);
  return "";
}

Evidence read_evidence(const std::filesystem::path& file) {
  const std::string where = file.string();
  const OrderedJson root = read_json(file);
  Evidence e;
  e.file = file;
  Fields f(root, where);
  const int64_t format = json_int(f.at("format"), f.at_key("format"), 0, kMost);
  if (format != kFormat)
    throw Error(ErrorKind::malformed, where, "is evidence of another format", std::to_string(kFormat),
                std::to_string(format), "Record it anew with this program: assay gate --profile device --record.");
  e.device.emulated = f.one_of("class", {"device", "emulated"}) == "emulated";
  Fields d(f.at("device"), f.at_key("device"));
  e.device.name = d.text("name");
  e.device.architecture = d.text("architecture");
  e.device.driver = d.text("driver");
  d.done();
  if (e.device.name.empty()) throw Error(ErrorKind::malformed, f.at_key("device"), "has no name");
  Fields m(f.at("module"), f.at_key("module"));
  e.module = m.text("name");
  e.module_sources = m.text("sources");
  e.architectures = json_strings(m.at("architectures"), m.at_key("architectures"));
  m.done();
  Fields p(f.at("program"), f.at_key("program"));
  e.version = p.text("version");
  e.program_sources = p.hash("sources");
  p.done();
  const OrderedJson& seed = f.at("seed");
  if (!seed.is_number_unsigned())
    throw Error(ErrorKind::malformed, f.at_key("seed"), "is of another kind", "a whole number from 0 to 2^64 - 1",
                seed.type_name());
  e.seed = seed.get<uint64_t>();
  const OrderedJson &checks = f.at("checks"), &bench = f.at("bench");
  if (!checks.is_array())
    throw Error(ErrorKind::malformed, f.at_key("checks"), "is of another kind", "a list", checks.type_name());
  if (!bench.is_array())
    throw Error(ErrorKind::malformed, f.at_key("bench"), "is of another kind", "a list", bench.type_name());
  for (size_t i = 0; i < checks.size(); i++) {
    EvidenceEntry one = read_entry(checks[i], fmt::format("{}: checks[{}]", where, i), holds_failures(file));
    if (e.find(one.check))
      throw Error(ErrorKind::malformed, fmt::format("{}: checks[{}]", where, i), "is of a check that stood before",
                  "each once", in_quotes(one.check));
    e.checks.push_back(std::move(one));
  }
  for (size_t i = 0; i < bench.size(); i++) {
    if (!bench[i].is_object())
      throw Error(ErrorKind::malformed, fmt::format("{}: bench[{}]", where, i), "is of another kind", "an object",
                  bench[i].type_name());
    e.bench.push_back(bench[i]);
  }
  f.done();
  return e;
}

OrderedJson to_json(const Evidence& e) {
  OrderedJson checks = OrderedJson::array();
  for (const EvidenceEntry& c : e.checks) {
    OrderedJson digests = OrderedJson::object();
    for (const NamedDigest& d : c.digests) digests[d.name] = d.digest;
    checks.push_back({{"check", c.check},
                      {"verdict", c.verdict},
                      {"recorded", c.recorded},
                      {"sources_of", c.sources.of},
                      {"sources", c.sources.hash},
                      {"compared", c.compared},
                      {"failed", c.failed},
                      {"seconds", c.seconds},
                      {"launches", c.launches},
                      {"variants", OrderedJson(c.variants)},
                      {"digests", digests}});
    if (holds_failures(e.file)) checks.back()["failures"] = c.failures;
  }
  return {{"format", kFormat},
          {"class", e.device.emulated ? "emulated" : "device"},
          {"device", {{"name", e.device.name}, {"architecture", e.device.architecture}, {"driver", e.device.driver}}},
          {"module", {{"name", e.module}, {"sources", e.module_sources}, {"architectures", e.architectures}}},
          {"program", {{"version", e.version}, {"sources", e.program_sources}}},
          {"seed", e.seed},
          {"checks", checks},
          {"bench", e.bench}};
}

void write_evidence(const Evidence& evidence, const std::filesystem::path& file) {
  Evidence e = evidence;
  e.file = file;  // decides on the fields of entries
  const std::filesystem::path beside = file.string() + ".partial";
  std::ofstream out(beside, std::ios::binary);
  out << to_json(e).dump(1, ' ', false, OrderedJson::error_handler_t::replace) << "\n";
  out.close();
  std::error_code failed;
  if (out) std::filesystem::rename(beside, file, failed);
  if (out && !failed) return;
  const std::string why = failed ? failed.message() : "the system took only a part of it";
  std::filesystem::remove(beside, failed);
  throw Error(ErrorKind::io, file.string(), "can't be written: " + why, "", "",
              "What was there before is still there.");
}

std::string evidence_name(const std::string& device) {
  std::string out;
  for (const unsigned char c : device) {
    if (std::isalnum(c))
      out += char(std::tolower(c));
    else if (!out.empty() && out.back() != '-')
      out += '-';
  }
  while (!out.empty() && out.back() == '-') out.pop_back();
  return out.empty() ? "device" : out;
}

std::filesystem::path failed_file(const std::filesystem::path& file) {
  return file.parent_path() / (file.stem().string() + ".failed.json");
}

EvidenceEntry entry_of(const CheckResult& result) {
  const std::time_t now = std::time(nullptr);
  std::tm utc{};
  gmtime_r(&now, &utc);
  char date[32];
  std::strftime(date, sizeof date, "%Y-%m-%dT%H:%M:%SZ", &utc);
  const CheckOutcome& o = result.outcome;
  EvidenceEntry e;
  e.check = result.check->id;
  e.verdict = result.verdict == Verdict::pass ? "pass" : result.verdict == Verdict::fail ? "fail" : "error";
  e.sources = built_sources(*result.check);
  e.recorded = date;
  e.compared = o.compared;
  e.failed = o.failed;
  e.seconds = std::round(result.seconds * 1000) / 1000;
  e.variants = o.ran.variants;
  e.launches = o.ran.launches;
  e.digests = o.digests;
  e.failures = o.failures;
  return e;
}

void merge(Evidence& to, const Evidence& from) {
  // What a row of bench measured, without what came out.
  const auto key = [](const OrderedJson& row) {
    std::string out;
    for (const auto& [name, value] : row.items())
      if (value.is_string() || value.is_number_integer() || value.is_boolean()) out += name + "=" + value.dump() + "\n";
    return out;
  };
  std::vector<EvidenceEntry> checks = std::move(to.checks);
  std::vector<OrderedJson> bench = std::move(to.bench);
  const std::filesystem::path file = to.file;
  to = from;
  to.file = file;
  std::erase_if(checks, [&](const EvidenceEntry& e) { return from.find(e.check) != nullptr; });
  std::erase_if(bench, [&](const OrderedJson& old) {
    return std::any_of(from.bench.begin(), from.bench.end(),
                       [&](const OrderedJson& row) { return key(row) == key(old); });
  });
  to.checks.insert(to.checks.begin(), checks.begin(), checks.end());
  to.bench.insert(to.bench.begin(), bench.begin(), bench.end());
  std::stable_sort(to.checks.begin(), to.checks.end(),
                   [](const EvidenceEntry& a, const EvidenceEntry& b) { return a.check < b.check; });
}

const Evidence* EvidenceFolder::failures_of(const Evidence& e) const {
  const auto f = std::find_if(failed.begin(), failed.end(), [&](const Evidence& bad) { return bad.device.name == e.device.name; });
  return f == failed.end() ? nullptr : &*f;
}

EvidenceFolder read_evidence_folder(const std::filesystem::path& folder, bool emulated) {
  EvidenceFolder out;
  std::vector<std::filesystem::path> files;
  std::error_code failed;
  for (const auto& f : std::filesystem::directory_iterator(folder, failed))
    if (f.path().extension() == ".json" && f.path().filename().string()[0] != '.') files.push_back(f.path());
  std::sort(files.begin(), files.end());
  std::vector<std::filesystem::path> doubtful;  // beside failures that can't be read
  for (const auto& f : files) try {
      Evidence e = read_evidence(f);
      if (e.device.emulated != emulated) continue;
      (holds_failures(f) ? out.failed : out.devices).push_back(std::move(e));
    } catch (const Error& e) {
      out.problems.push_back(e.what());
      if (holds_failures(f)) doubtful.push_back(f);
    }
  std::erase_if(out.devices, [&](const Evidence& e) {
    return std::any_of(doubtful.begin(), doubtful.end(), [&](const auto& f) { return failed_file(e.file) == f; });
  });
  return out;
}

}  // namespace assay
