// Holding planted faults against the checks that must catch them. The reviewed table expected.json says which these are
// and where each must fail first; a fault caught elsewhere, or by a weaker check, is not caught.
#pragma once
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "conformance/check.h"
#include "conformance/faults/faults.h"

namespace assay {

/// One line of the table: what a check must say of a fault.
struct Expectation {
  std::string check;  // "integration/qwen3-odd/max_rel", "kernel/attention", "regression/llama-base"; see probes.cpp
  CheckKind kind = CheckKind::value;
  Scope scope = Scope::none;
  std::string place;      // the beginning of what it must say first
  bool survives = false;  // this check must pass: it can not see the fault, and the matrix says so
  int64_t chunk = 0;      // prefill rows per pass of the run
};
/// By fault id, in the table's order. Error{malformed} with the entry.
using ExpectedFaults = std::vector<std::pair<std::string, std::vector<Expectation>>>;
ExpectedFaults read_expected(const std::filesystem::path& file);

/// What a check says without the fault or with it. Findings without a fault are kept for the process. `only`: a kernel
/// check without the fault runs that case alone (all of them are checks of their own).
Finding probe(const CheckContext& c, const Expectation& e, const Fault& fault, bool planted, int64_t only = -1);

/// The record of one fault (dumps/schemas/record.schema.json, "fault"). Never throws but for a malformed table.
nlohmann::ordered_json judge_fault(const CheckContext& c, const Fault& fault, const std::vector<Expectation>& expected);

/// {"faults": [...], "matrix": {...}, "clean": ..., "summary": {...}} of fault records.
nlohmann::ordered_json kill_matrix(const std::vector<nlohmann::ordered_json>& records);
/// For people, from the same records.
std::string render_faults_text(const std::vector<nlohmann::ordered_json>& records, bool verbose);

}  // namespace assay
