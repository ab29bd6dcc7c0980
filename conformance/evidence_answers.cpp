// What evidence is worth here: answers to checks that can't run, and digests computed again.
#include <fmt/format.h>

#include <algorithm>
#include <random>

#include "conformance/evidence.h"
#include "conformance/kernel/kernel_check.h"
#include "dumps/error.h"
#include "engine/version.h"

namespace assay {

std::string_view name_of(Standing s) {
  switch (s) {
    case Standing::fresh:
      return "fresh";
    case Standing::stale:
      return "stale";
    case Standing::missing:
      return "missing";
    case Standing::failed:
      return "failed";
  }
  return "?";
}

namespace {

/// Whether a check of kernel scope has the cases now that an entry's digest is of. That of whole models is seen by who
/// computes their digests.
bool same_cases(const Check& check, const EvidenceEntry& entry) {
  if (check.scope != Scope::kernel || !check.cpu_digests) return true;
  CheckContext names;
  names.kernel.only = kNoCase;
  const std::vector<NamedDigest> now = check.cpu_digests(names, "");
  return std::equal(now.begin(), now.end(), entry.digests.begin(), entry.digests.end(),
                    [](const NamedDigest& a, const NamedDigest& b) { return a.name == b.name; });
}

}  // namespace

Answer answer(const Check& check, const Evidence* evidence, const Evidence* failed) {
  const SourceHash built = built_sources(check);
  const EvidenceEntry* bad = failed ? failed->find(check.id) : nullptr;
  const EvidenceEntry* good = evidence ? evidence->find(check.id) : nullptr;
  // No dates: clocks differ. A check that passes later is struck off (evidence_record.cpp).
  if (bad && bad->verdict != "pass" && bad->sources.hash == built.hash)
    return {&check, Standing::failed, failed, bad, bad->failures.empty() ? "failed there" : bad->failures.front()};
  if (!good) return {&check, Standing::missing, nullptr, nullptr, "no evidence holds it"};
  if (good->sources.hash != built.hash)
    return {&check, Standing::stale, evidence, good,
            fmt::format("sources of {} are {} now, were {}", built.of, built.hash.substr(0, 8),
                        good->sources.hash.substr(0, 8))};
  if (good->compared < check.expected)
    return {&check, Standing::stale, evidence, good,
            fmt::format("compares at least {} now, compared {}", check.expected, good->compared)};
  if (check.scope == Scope::kernel && evidence->seed != KernelRun{}.seed)
    return {&check, Standing::stale, evidence, good, fmt::format("its cases were drawn with seed {}, now {}", evidence->seed, KernelRun{}.seed)};
  if (check.cpu_digests && good->digests.empty()) return {&check, Standing::stale, evidence, good, "holds no digest"};
  if (!same_cases(check, *good)) return {&check, Standing::stale, evidence, good, "the check has other cases now"};
  return {&check, Standing::fresh, evidence, good, ""};
}

Answer answer(const Check& check, const EvidenceFolder& folder) {
  std::vector<Answer> all;
  for (const Evidence& e : folder.devices) all.push_back(answer(check, &e, folder.failures_of(e)));
  for (const Evidence& f : folder.failed)
    all.push_back(answer(check, nullptr, &f));  // of devices that have nothing good to show
  Answer best = answer(check, nullptr, nullptr);
  const auto rank = [](const Answer& a) {  // what decides, first
    switch (a.standing) {
      case Standing::failed:
        return 0;
      case Standing::fresh:
        return 1;
      case Standing::stale:
        return 2;
      default:
        return 3;
    }
  };
  for (const Answer& a : all) {
    if (rank(a) < rank(best) ||
        (rank(a) == rank(best) && a.entry && best.entry && a.entry->recorded > best.entry->recorded))
      best = a;
  }
  return best;
}

std::string state_of(const std::vector<Answer>& answers) {
  const auto count = [&](Standing s) {
    return std::count_if(answers.begin(), answers.end(), [s](const Answer& a) { return a.standing == s; });
  };
  if (count(Standing::failed)) return "failed";
  if (count(Standing::missing) == std::ptrdiff_t(answers.size())) return "missing";
  if (count(Standing::stale)) return "stale";
  return count(Standing::missing) ? "incomplete" : "fresh";
}

void answer_from_evidence(CheckResult& result, const EvidenceFolder& folder) {
  if (result.verdict != Verdict::not_run) return;
  const Answer a = answer(*result.check, folder);
  if (!a.entry) return;
  CheckOutcome& o = result.outcome;
  if (a.standing == Standing::stale) {
    o.not_run = fmt::format("stale evidence ({}, {}): {}; {}", a.evidence->device.name, a.entry->recorded.substr(0, 10),
                            a.why, o.not_run);
    return;
  }
  o.not_run.clear();
  o.compared = a.entry->compared;
  o.ran = a.evidence->device;
  o.ran.variants = a.entry->variants;
  o.ran.launches = a.entry->launches;
  o.digests = a.entry->digests;
  o.notes.push_back(fmt::format("{} in {}", a.entry->check, a.evidence->file.string()));
  o.failed = a.entry->failed;
  o.failures = a.entry->failures;
  result.verdict = a.standing == Standing::fresh ? Verdict::pass : Verdict::fail;
  result.exit_code = a.standing == Standing::fresh ? kPass : kMismatch;
  if (a.standing == Standing::failed && o.failures.empty()) o.fail("failed on " + a.evidence->device.name);
  result.from_evidence = {a.evidence->device.name, a.entry->recorded, a.evidence->file.string()};
}

uint64_t default_sample_seed(const Evidence& evidence) {
  const std::string both = to_json(evidence).dump() + kSourceHash;
  return xxh3_64(both.data(), both.size());
}

DigestSample recompute_digests(const std::vector<Answer>& answers, size_t most, uint64_t seed, bool slow,
                               CheckContext context) {
  namespace fs = std::filesystem;
  DigestSample out;
  out.seed = seed;
  std::vector<std::pair<const Answer*, const NamedDigest*>> known;
  for (const Answer& a : answers)
    if (a.entry && a.entry->verdict == "pass" && a.check->cpu_digests && (slow || a.check->cost == Cost::fast))
      for (const NamedDigest& d : a.entry->digests) known.emplace_back(&a, &d);
  out.known = known.size();
  std::mt19937_64 rng(seed);
  for (size_t i = 0; i < std::min(most, known.size()); i++) std::swap(known[i], known[i + rng() % (known.size() - i)]);
  known.resize(std::min(most, known.size()));
  // By check, so that a model is read once.
  std::sort(known.begin(), known.end(), [](const auto& a, const auto& b) {
    return std::tie(a.first->check->id, a.second->name) < std::tie(b.first->check->id, b.second->name);
  });
  const fs::path work = context.work;
  for (const auto& [a, digest] : known) {
    std::string folder = a->check->id;
    std::replace(folder.begin(), folder.end(), '/', '.');
    context.work = work / folder;
    fs::create_directories(context.work);
    context.kernel = {};
    context.kernel.seed = a->evidence->seed;
    const std::vector<NamedDigest> found = a->check->cpu_digests(context, digest->name);
    std::error_code ignored;
    fs::remove_all(context.work, ignored);
    if (found.empty() && a->standing != Standing::fresh) continue;  // the check has changed since, which "stale" says
    out.rows.push_back({a->check->id, digest->name, digest->digest, found.empty() ? "" : found.front().digest});
  }
  return out;
}

}  // namespace assay
