#include "conformance/faults/judge.h"

#include <fmt/format.h>

#include <algorithm>

#include "engine/formats/hf_tokenizer.h"

namespace assay {
namespace {

CheckKind kind_named(const std::string& name, const std::string& where) {
  for (CheckKind k : {CheckKind::value, CheckKind::counter, CheckKind::artifact, CheckKind::quality})
    if (name_of(k) == name) return k;
  throw Error(ErrorKind::malformed, where, "unknown kind", "value, counter, artifact or quality", name);
}
Scope scope_named(const nlohmann::json& row, const std::string& where) {
  if (!row.contains("scope")) return Scope::none;
  for (Scope s : {Scope::kernel, Scope::integration})
    if (name_of(s) == row.at("scope").get<std::string>()) return s;
  throw Error(ErrorKind::malformed, where, "unknown scope", "kernel or integration", row.at("scope").dump());
}

/// A place may quote bytes of a broken file; a record is UTF-8.
std::string printable(std::string text) {
  for (char& ch : text)
    if ((unsigned char)ch < 0x20 || (unsigned char)ch > 0x7e) ch = '?';
  return text;
}

nlohmann::ordered_json scope_json(Scope s) {
  return s == Scope::none ? nlohmann::ordered_json(nullptr) : nlohmann::ordered_json(name_of(s));
}

/// What came of one line of the table.
struct Judged {
  Finding planted;
  std::string status;  // caught, elsewhere, missed, not_applicable, not_run
  bool clean = true;
};

Judged judge(const CheckContext& c, const Expectation& e, const Fault& fault) {
  Judged j;
  try {
    j.planted = probe(c, e, fault, true);
  } catch (const NoPlace& no) {
    j.status = "not_applicable";
    j.planted.place = no.what();
    return j;
  }
  const Finding honest = probe(c, e, fault, false, j.planted.kernel_case);
  j.clean = !honest.failed;
  if (const std::string& why = honest.not_run.empty() ? j.planted.not_run : honest.not_run; !why.empty()) {
    j.status = "not_run";
    j.planted.place = why;
    return j;
  }
  if (honest.failed) j.planted.note = "fails without the fault: " + honest.place + "; " + j.planted.note;
  if (!j.planted.failed)
    j.status = "missed";
  else if (!e.survives && !e.place.empty() && j.planted.place.rfind(e.place, 0) == 0)
    j.status = "caught";
  else
    j.status = "elsewhere";
  return j;
}

}  // namespace

ExpectedFaults read_expected(const std::filesystem::path& file) {
  ExpectedFaults out;
  try {
    const nlohmann::ordered_json table = nlohmann::ordered_json::parse(read_text_file(file));
    for (const auto& [id, rows] : table.at("faults").items()) {
      std::vector<Expectation> expected;
      for (const nlohmann::json row : rows) {
        for (const auto& [key, value] : row.items())
          if (key != "check" && key != "kind" && key != "scope" && key != "place" && key != "survives" &&
              key != "chunk")
            throw Error(ErrorKind::malformed, file.string() + ": " + id, "unknown key", "", key);
        Expectation e;
        e.check = row.at("check");
        e.kind = kind_named(row.at("kind"), file.string() + ": " + id);
        e.scope = scope_named(row, file.string() + ": " + id);
        e.place = row.value("place", "");
        e.survives = row.value("survives", false);
        e.chunk = row.value("chunk", int64_t(0));
        if (e.place.empty() != e.survives)
          throw Error(ErrorKind::malformed, file.string() + ": " + id, e.check + ": a place, or \"survives\"");
        expected.push_back(std::move(e));
      }
      if (std::none_of(expected.begin(), expected.end(), [](const Expectation& e) { return !e.survives; }))
        throw Error(ErrorKind::malformed, file.string() + ": " + id, "no check is expected to catch it");
      out.emplace_back(id, std::move(expected));
    }
  } catch (const nlohmann::json::exception& e) {
    throw Error(ErrorKind::malformed, file.string(), e.what());
  }
  return out;
}

nlohmann::ordered_json judge_fault(const CheckContext& c, const Fault& fault,
                                   const std::vector<Expectation>& expected) {
  std::vector<Judged> judged;
  for (const Expectation& e : expected) {
    CheckContext inner = c;
    std::string folder = fault.id + "." + e.check;
    std::replace(folder.begin(), folder.end(), '/', '.');
    inner.work /= folder;
    std::filesystem::create_directories(inner.work);
    try {
      judged.push_back(judge(inner, e, fault));
    } catch (const std::exception& error) {
      Judged j;
      j.status = "not_run";
      j.planted.place = error.what();
      judged.push_back(j);
    }
    std::error_code ignored;
    std::filesystem::remove_all(inner.work, ignored);
  }
  const bool changed = std::any_of(judged.begin(), judged.end(), [](const Judged& j) { return j.planted.changed; });
  bool clean = true, as_expected = !expected.empty();
  nlohmann::ordered_json wanted = nlohmann::ordered_json::array(), found = nlohmann::ordered_json::array();
  for (size_t i = 0; i < expected.size(); i++) {
    const Expectation& e = expected[i];
    Judged& j = judged[i];
    if (!changed && j.status == "missed") j.status = "not_planted";
    clean = clean && j.clean;
    as_expected = as_expected && j.status == (e.survives ? "missed" : "caught");
    nlohmann::ordered_json row = {{"check", e.check}, {"kind", name_of(e.kind)}, {"scope", scope_json(e.scope)}};
    if (e.chunk) row["chunk"] = e.chunk;
    nlohmann::ordered_json want = row, got = row;
    want["place"] = e.place;
    if (e.survives) want["survives"] = got["survives"] = true;
    got["status"] = j.status;
    got["place"] = printable(j.planted.place);
    if (!j.planted.note.empty()) got["figures"] = printable(j.planted.note);
    wanted.push_back(std::move(want));
    found.push_back(std::move(got));
  }
  return {{"record", "fault"},
          {"id", fault.id},
          {"row", fault.row()},
          {"what", fault.what},
          {"how", name_of(fault.how)},
          {"expected", wanted},
          {"found", found},
          {"clean", clean},
          {"caught_as_expected", as_expected && clean},
          {"note", fault.note}};
}

}  // namespace assay
